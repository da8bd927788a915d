//! Validated kernel code: the module parsed by naga, matched with the kernel's description.

use crate::ir::{BindingInfo, DType, Dispatch, KernelCode, OutputShape, ParamsLayout, Shape, SourcePlace};
use core::sync::atomic::{AtomicU64, Ordering};

use naga::valid::{Capabilities, GlobalUse, ModuleInfo, ValidationFlags, Validator};
use naga::{
    AddressSpace, ArraySize, BuiltIn, EntryPoint, GlobalVariable, Handle, Module, ResourceBinding, ShaderStage,
    StorageAccess, TypeInner,
};
use smallvec::SmallVec;

use super::CustomKernel;
use super::loops::has_loops;
use super::params::class_of;
use super::text::{Text, bound};
use crate::error::KernelError;
use crate::kernel::uniformity;

/// First binding number for variables that the kernel does not use.
const UNUSED: u32 = 100;

/// A unique id for each version of each kernel, so that recordings can tell them apart.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl KernelCode {
    /// The shapes of outputs or scratch memory for the given input shapes.
    pub(crate) fn shapes(&self, of: &[BindingInfo], inputs: &[Shape]) -> Result<SmallVec<[Shape; 2]>, String> {
        let names: SmallVec<[&'static str; 4]> = self.inputs.iter().map(|input| input.name).collect();
        of.iter()
            .map(|binding| match &binding.shape {
                Some(shape) => shape.resolve(&names, inputs),
                None => Ok(Shape::default()),
            })
            .collect()
    }

    /// The number of workgroups for the given input and output shapes. `limit` is the device's maximum per dimension.
    pub(crate) fn workgroups(&self, inputs: &[Shape], outputs: &[Shape], limit: u32) -> Result<[u32; 3], String> {
        let first = outputs.first().cloned().unwrap_or_default();
        let of = |threads: usize, axis: usize| threads.div_ceil(self.workgroup[axis].max(1) as usize) as u32;
        let limit = limit.max(1);
        let workgroups = match &self.dispatch {
            Dispatch::Workgroups(workgroups) => *workgroups,
            Dispatch::By(rule) => rule(inputs, outputs),
            Dispatch::Axes => {
                let rank = first.rank();
                let size = |back: usize| rank.checked_sub(back).map_or(1, |axis| first[axis]);
                [of(size(1), 0), of(size(2), 1), of(first[..rank.saturating_sub(2)].iter().product(), 2)]
            }
            Dispatch::Elements => {
                let threads: usize = self.workgroup.iter().map(|&n| n.max(1) as usize).product();
                let all = first.elements().div_ceil(threads) as u32;
                let rows = all.div_ceil(limit).max(1);
                if rows > 1 && !self.folds {
                    return Err(format!(
                        "{all} workgroups are more than the {limit} of one dimension; take num_workgroups and find the thread by \
                         thread_index of tensor::indexing"
                    ));
                }
                [all.div_ceil(rows), rows, 1]
            }
        };
        match workgroups {
            [x, y, z] if x == 0 || y == 0 || z == 0 => {
                Err(format!("a dispatch of {workgroups:?} workgroups does nothing"))
            }
            [x, y, z] if x.max(y).max(z) > limit => {
                Err(format!("a dispatch of {workgroups:?} workgroups is more than the {limit} of one dimension"))
            }
            workgroups => Ok(workgroups),
        }
    }

    /// Whether the device limits allow this kernel.
    pub(crate) fn fits(&self, limits: &wgpu::Limits) -> Result<(), KernelError> {
        let [x, y, z] = self.workgroup;
        let bindings = self.inputs.len() + self.outputs.len() + self.scratch.len();
        // A kernel with loops also binds the counter that reports those without an end.
        let storage = bindings as u32
            + u32::from(self.params.as_ref().is_some_and(|params| params.storage))
            + u32::from(self.loops.is_some());
        let needs = [
            (
                "threads of a workgroup:",
                x.saturating_mul(y).saturating_mul(z),
                limits.max_compute_invocations_per_workgroup,
            ),
            ("threads of a workgroup along x:", x, limits.max_compute_workgroup_size_x),
            ("threads of a workgroup along y:", y, limits.max_compute_workgroup_size_y),
            ("threads of a workgroup along z:", z, limits.max_compute_workgroup_size_z),
            ("bytes of workgroup memory:", self.workgroup_memory, limits.max_compute_workgroup_storage_size),
            ("storage bindings:", storage, limits.max_storage_buffers_per_shader_stage),
            ("bytes of params:", self.param_words() as u32 * 4, limits.max_uniform_buffer_binding_size as u32),
        ];
        match needs.into_iter().find(|(_, requested, available)| requested > available) {
            Some((what, requested, available)) => {
                Err(KernelError::Limit { kernel: self.name, place: self.place, what, requested, available })
            }
            None => Ok(()),
        }
    }

    /// The WGSL for a device. Inputs for which `writable` returns true share memory with a binding that the launch
    /// writes, and are bound accordingly.
    pub(crate) fn wgsl(&self, writable: impl Fn(usize) -> bool) -> String {
        let inputs = self.inputs.iter().enumerate().map(|(i, input)| {
            let access = writable(i).then_some("read_write");
            (input.at, i as u32 + 1, access)
        });
        let others = self.others.iter().map(|&(at, number)| (at, number, None));
        let bindings: Vec<_> = inputs.chain(others).collect();
        // Pipelines are cached by their text, so everything else that distinguishes them is put in a comment.
        let checks = if self.trusted { "trusted" } else { "checked" };
        format!("// {}: {}, {checks}\n{}", self.name, self.entry, bound(&self.text, &bindings))
    }
}

/// Parses and validates a text and matches it with the description. `features` are those of the device, if known.
pub(super) fn compile(
    kernel: &CustomKernel,
    source: &str,
    features: Option<wgpu::Features>,
) -> Result<KernelCode, KernelError> {
    let text = Text::new(kernel.name, source)?;
    let mut module = text.parse()?;
    let (index, entry) = find_entry(kernel, &module)?;
    let place = text.place_of_function(&entry.name);
    let (workgroup, folds) = (entry.workgroup_size, takes_workgroups(&module, entry));
    if entry.workgroup_size_overrides.is_some_and(|sizes| sizes.iter().any(Option::is_some)) {
        let reason = "the workgroup size must be constant; overrides are not supported".to_owned();
        return Err(KernelError::Description { kernel: kernel.name, reason });
    }
    number_bindings(kernel, &mut module);
    let info = validator(features).validate(&module).map_err(|error| text.invalid(&error))?;
    let found = Found { kernel, text: &text, module: &module, info: &info, entry: index };
    let inputs = kernel.inputs.iter().map(|name| found.binding(name, "input", None, false));
    let outputs = kernel.outputs.iter().map(|o| found.binding(o.name, "output", Some(o.shape.clone()), o.zeroed));
    let scratch = kernel.scratch.iter().map(|(name, shape)| found.binding(name, "scratch", Some(shape.clone()), false));
    let (inputs, outputs, scratch): (Vec<_>, Vec<_>, Vec<_>) =
        (inputs.collect::<Result<_, _>>()?, outputs.collect::<Result<_, _>>()?, scratch.collect::<Result<_, _>>()?);
    let params = found.params()?;
    found.check_unknown()?;
    uniformity::check(&module, &module.entry_points[index]).map_err(|barrier| KernelError::Barrier {
        kernel: kernel.name,
        place: text.place_of(barrier.span),
        function: barrier.function,
    })?;
    let is_input = |variable: &GlobalVariable| kernel.inputs.iter().any(|name| variable.name.as_deref() == Some(name));
    let others = module.global_variables.iter().filter(|(_, variable)| !is_input(variable));
    let others = others.filter_map(|(handle, variable)| Some((found.declaration(handle)?, variable.binding?.binding)));
    let code = KernelCode {
        id: next_id(),
        name: kernel.name,
        entry: kernel.entry,
        trusted: kernel.trusted,
        inputs,
        outputs,
        scratch,
        params,
        cpu: kernel.cpu.clone(),
        dispatch: kernel.dispatch.clone(),
        folds,
        workgroup,
        loops: found.loop_bound(),
        workgroup_memory: found.workgroup_memory()?,
        place,
        others: others.collect(),
        text: text.wgsl.clone(),
    };
    // Also validates the text as generated for the device, with every input in writable memory.
    let device_text = code.wgsl(|_| true);
    let accepted = naga::front::wgsl::parse_str(&device_text)
        .map_err(|error| error.message().to_owned())
        .and_then(|module| validator(features).validate(&module).map_err(|error| error.to_string()));
    match accepted {
        Ok(_) => Ok(code),
        Err(error) => Err(KernelError::Wgsl {
            kernel: kernel.name,
            place: None,
            message: format!(
                "{error}; an input may share memory with an output, so its access mode cannot be part of a type"
            ),
        }),
    }
}

/// A validator for the features of a device, or for everything this crate can run if there is no device yet.
pub(super) fn validator(features: Option<wgpu::Features>) -> Validator {
    let features = features.unwrap_or(wgpu::Features::all());
    // Packing f16 is core WebGPU. Naga makes it a capability only because of old OpenGL versions.
    let mut capabilities = Capabilities::default() | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    for (feature, capability) in [
        (wgpu::Features::SHADER_F16, Capabilities::SHADER_FLOAT16),
        (wgpu::Features::SHADER_F64, Capabilities::FLOAT64),
        (wgpu::Features::SHADER_INT64, Capabilities::SHADER_INT64),
        (wgpu::Features::SHADER_FLOAT32_ATOMIC, Capabilities::SHADER_FLOAT32_ATOMIC),
        (wgpu::Features::SUBGROUP, Capabilities::SUBGROUP),
        (wgpu::Features::SUBGROUP_BARRIER, Capabilities::SUBGROUP_BARRIER),
    ] {
        capabilities.set(capability, features.contains(feature));
    }
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    if features.contains(wgpu::Features::SUBGROUP) {
        validator
            .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
            .subgroup_operations(naga::valid::SubgroupOperationSet::all());
    }
    validator
}

/// Finds the entry point of a kernel.
fn find_entry<'m>(kernel: &CustomKernel, module: &'m Module) -> Result<(usize, &'m EntryPoint), KernelError> {
    let mut compute = module.entry_points.iter().enumerate().filter(|(_, entry)| entry.stage == ShaderStage::Compute);
    compute.clone().find(|(_, entry)| entry.name == kernel.entry).ok_or_else(|| KernelError::EntryPoint {
        kernel: kernel.name,
        entry: kernel.entry,
        found: compute.by_ref().map(|(_, entry)| entry.name.clone()).collect(),
    })
}

/// Whether an entry point uses the `num_workgroups` built-in.
fn takes_workgroups(module: &Module, entry: &EntryPoint) -> bool {
    let is = |binding: &Option<naga::Binding>| *binding == Some(naga::Binding::BuiltIn(BuiltIn::NumWorkGroups));
    entry.function.arguments.iter().any(|argument| {
        is(&argument.binding)
            || matches!(&module.types[argument.ty].inner, TypeInner::Struct { members, .. } if members.iter().any(|m| is(&m.binding)))
    })
}

/// Assigns binding numbers to the buffer variables of the module: 0 for params, then inputs, outputs and scratch in
/// order.
fn number_bindings(kernel: &CustomKernel, module: &mut Module) {
    let names: Vec<&str> = kernel
        .inputs
        .iter()
        .copied()
        .chain(kernel.outputs.iter().map(|output| output.name))
        .chain(kernel.scratch.iter().map(|(name, _)| *name))
        .collect();
    let mut unused = UNUSED;
    for (_, variable) in module.global_variables.iter_mut() {
        if !matches!(variable.space, AddressSpace::Storage { .. } | AddressSpace::Uniform | AddressSpace::Handle) {
            continue;
        }
        let name = variable.name.as_deref().unwrap_or_default();
        let number = match names.iter().position(|n| *n == name) {
            Some(i) => i as u32 + 1,
            None if kernel.params.is_some_and(|(params, _)| params == name) => 0,
            None => {
                unused += 1;
                unused
            }
        };
        variable.binding = Some(ResourceBinding { group: 0, binding: number });
    }
}

/// A validated module and the description of its kernel.
struct Found<'a> {
    kernel: &'a CustomKernel,
    text: &'a Text,
    module: &'a Module,
    info: &'a ModuleInfo,
    entry: usize,
}

impl Found<'_> {
    fn usage(&self, variable: Handle<GlobalVariable>) -> GlobalUse {
        self.info.get_entry_point(self.entry)[variable]
    }

    fn place(&self, variable: Handle<GlobalVariable>) -> Option<SourcePlace> {
        self.text.place_of(self.module.global_variables.get_span(variable))
    }

    /// Position of a variable's declaration in the text.
    fn declaration(&self, variable: Handle<GlobalVariable>) -> Option<usize> {
        let range = self.module.global_variables.get_span(variable).to_range()?;
        Some(range.start + self.text.wgsl[range].find("var")?)
    }

    /// Fails if the entry point uses a buffer that the description does not list.
    fn check_unknown(&self) -> Result<(), KernelError> {
        for (handle, variable) in self.module.global_variables.iter() {
            let unknown = variable.binding.is_some_and(|binding| binding.binding > UNUSED)
                || variable.space == AddressSpace::Immediate;
            if unknown && !self.usage(handle).is_empty() {
                return Err(KernelError::UnknownBinding {
                    kernel: self.kernel.name,
                    place: self.place(handle),
                    binding: variable.name.clone().unwrap_or_default(),
                });
            }
        }
        Ok(())
    }

    fn variable(
        &self,
        name: &'static str,
        role: &'static str,
    ) -> Result<(Handle<GlobalVariable>, &GlobalVariable), KernelError> {
        let bound = |variable: &GlobalVariable| variable.binding.is_some() && variable.name.as_deref() == Some(name);
        let found = self.module.global_variables.iter().find(|(_, variable)| bound(variable));
        found.ok_or(KernelError::MissingBinding { kernel: self.kernel.name, binding: name, role })
    }

    /// Finds the variable of an input, output or scratch memory.
    fn binding(
        &self,
        name: &'static str,
        role: &'static str,
        shape: Option<OutputShape>,
        zeroed: bool,
    ) -> Result<BindingInfo, KernelError> {
        let kernel = self.kernel.name;
        let (handle, variable) = self.variable(name, role)?;
        let place = self.place(handle);
        let access =
            |expected, found| Err(KernelError::BindingAccess { kernel, place, binding: name, role, expected, found });
        let input = role == "input";
        match variable.space {
            AddressSpace::Storage { access: declared } => match (input, declared.contains(StorageAccess::STORE)) {
                (true, true) => return access("var<storage, read>", "var<storage, read_write>"),
                (false, false) => return access("var<storage, read_write>", "var<storage, read>"),
                _ => {}
            },
            AddressSpace::Uniform => return access("var<storage>", "var<uniform>"),
            _ => return access("var<storage>", "a texture or sampler"),
        }
        if role == "output" && !self.usage(handle).intersects(GlobalUse::WRITE | GlobalUse::ATOMIC) {
            return access("written by the entry point", "not");
        }
        let (dtype, lanes, fixed) = elements(self.module, variable.ty).map_err(|reason| KernelError::BindingType {
            kernel,
            place,
            binding: name,
            role,
            reason,
        })?;
        let at = self.declaration(handle).unwrap_or(0);
        Ok(BindingInfo { name, dtype, lanes, least: fixed * lanes, zeroed, shape, at })
    }

    /// Matches the params struct with the Rust type.
    fn params(&self) -> Result<Option<ParamsLayout>, KernelError> {
        let Some((name, rust)) = self.kernel.params else { return Ok(None) };
        let kernel = self.kernel.name;
        let (handle, variable) = self.variable(name, "params")?;
        let storage = match variable.space {
            AddressSpace::Uniform => false,
            AddressSpace::Storage { access } if access == StorageAccess::LOAD => true,
            _ => {
                return Err(KernelError::BindingAccess {
                    kernel,
                    place: self.place(handle),
                    binding: name,
                    role: "params",
                    expected: "var<uniform> or var<storage, read>",
                    found: "var<storage, read_write>",
                });
            }
        };
        let place = self.text.place_of(self.module.types.get_span(variable.ty)).or_else(|| self.place(handle));
        ParamsLayout::new(self.module, variable.ty, storage, rust).map(Some).map_err(|reason| KernelError::Params {
            kernel,
            place,
            reason,
        })
    }

    /// Maximum number of loop iterations of a thread. `None` if the entry point has no loops or the kernel is trusted.
    fn loop_bound(&self) -> Option<u32> {
        let function = &self.module.entry_points[self.entry].function;
        (!self.kernel.trusted && has_loops(self.module, function)).then_some(self.kernel.loop_bound)
    }

    /// Bytes of the workgroup variables that the entry point uses. The sizes of arrays may be overrides, which may
    /// depend on each other.
    fn workgroup_memory(&self) -> Result<u32, KernelError> {
        let name = self.module.entry_points[self.entry].name.as_str();
        let constants = naga::back::PipelineConstants::default();
        let (module, info) = naga::back::pipeline_constants::process_overrides(
            self.module,
            self.info,
            Some((ShaderStage::Compute, name)),
            &constants,
        )
        .map_err(|error| KernelError::Wgsl {
            kernel: self.kernel.name,
            place: None,
            message: error.to_string(),
        })?;
        let entry = module.entry_points.iter().position(|entry| entry.name == name).unwrap_or(0);
        let usage = info.get_entry_point(entry);
        let used = |(handle, variable): &(Handle<GlobalVariable>, &GlobalVariable)| {
            variable.space == AddressSpace::WorkGroup && !usage[*handle].is_empty()
        };
        let sizes = module.global_variables.iter().filter(used).map(|(_, variable)| {
            let size = module.types[variable.ty].inner.try_size(module.to_ctx()).unwrap_or(u32::MAX);
            size.checked_next_multiple_of(16).unwrap_or(u32::MAX)
        });
        Ok(sizes.fold(0, u32::saturating_add))
    }
}

/// The element type of an array: its dtype, the numbers per element, and the minimum number of elements (0 for
/// runtime-sized arrays).
fn elements(module: &Module, ty: Handle<naga::Type>) -> Result<(DType, usize, usize), String> {
    let wrong = "must be an array of f32, i32, u32, or of vectors of two or four of these".to_owned();
    let TypeInner::Array { base, size, .. } = module.types[ty].inner else { return Err(wrong) };
    let (scalar, lanes) = match module.types[base].inner {
        TypeInner::Scalar(scalar) | TypeInner::Atomic(scalar) => (scalar, 1),
        TypeInner::Vector { size: naga::VectorSize::Bi, scalar } => (scalar, 2),
        TypeInner::Vector { size: naga::VectorSize::Quad, scalar } => (scalar, 4),
        _ => return Err(wrong),
    };
    let Some(class) = class_of(scalar) else {
        return Err(format!("{wrong}; tensors of narrow types are packed, so cast them first"));
    };
    let least = match size {
        ArraySize::Constant(count) => count.get() as usize,
        ArraySize::Dynamic => 0,
        ArraySize::Pending(_) => return Err(wrong),
    };
    Ok((class.dtype(), lanes, least))
}

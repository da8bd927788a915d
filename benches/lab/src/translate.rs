//! Translates a text to the languages of wgpu's backends, with the options that wgpu uses.

use std::panic::{AssertUnwindSafe, catch_unwind};

use naga::back::{PipelineConstants, glsl, hlsl, msl, pipeline_constants, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ShaderStages, SubgroupOperationSet, ValidationFlags, Validator};
use naga::{
    AddressSpace, Expression, GlobalVariable, ImageClass, Module, ResourceBinding, Scalar, ShaderStage, TypeInner,
};

use crate::catalogue::Text;

/// The entry point of every kernel.
pub const ENTRY: &str = "main";

/// The resource at a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Uniform,
    /// A storage buffer, and whether it is written.
    Storage(bool),
    Texture,
    StorageTexture,
}

/// A parsed and validated text.
pub struct Kernel {
    module: Module,
    info: ModuleInfo,
    checked: bool,
    /// The bindings of group 0.
    pub bindings: Vec<(u32, Resource)>,
    /// Optional device features that it uses.
    pub needs: Needs,
}

/// Optional device features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    pub subgroups: bool,
    /// 16-bit floats.
    pub halves: bool,
    /// 64-bit integers.
    pub wide: bool,
}

impl Needs {
    /// Whether every device can run the text.
    pub fn nothing(self) -> bool {
        self == Self::default()
    }
}

/// Parses and validates a text. Pipeline constants are set to 1.
pub fn read(text: &Text) -> Result<Kernel, String> {
    let wgsl = &text.wgsl;
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|error| error.emit_to_string(wgsl))?;
    let capabilities = Capabilities::default()
        | Capabilities::SUBGROUP
        | Capabilities::SHADER_INT64
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    validator.subgroup_stages(ShaderStages::COMPUTE).subgroup_operations(SubgroupOperationSet::all());
    let info = validator.validate(&module).map_err(|error| error.emit_to_string(wgsl))?;
    let mut constants = PipelineConstants::default();
    constants.extend(module.overrides.iter().filter_map(|(_, constant)| Some((constant.name.clone()?, 1.0))));
    let entry = Some((ShaderStage::Compute, ENTRY));
    let (module, info) =
        pipeline_constants::process_overrides(&module, &info, entry, &constants).map_err(|error| error.to_string())?;
    let (module, info) = (module.into_owned(), info.into_owned());
    let bindings = bindings(&module).map(|(at, variable)| (at.binding, resource(&module, variable))).collect();
    let needs = needs(&module);
    Ok(Kernel { module, info, checked: text.checked, bindings, needs })
}

fn bindings(module: &Module) -> impl Iterator<Item = (ResourceBinding, &GlobalVariable)> {
    module.global_variables.iter().filter_map(|(_, variable)| Some((variable.binding?, variable)))
}

fn resource(module: &Module, variable: &GlobalVariable) -> Resource {
    match (&module.types[variable.ty].inner, variable.space) {
        (TypeInner::Image { class: ImageClass::Storage { .. }, .. }, _) => Resource::StorageTexture,
        (TypeInner::Image { .. }, _) => Resource::Texture,
        (_, AddressSpace::Uniform) => Resource::Uniform,
        (_, AddressSpace::Storage { access }) => Resource::Storage(access.contains(naga::StorageAccess::STORE)),
        _ => Resource::Storage(true),
    }
}

fn needs(module: &Module) -> Needs {
    let of_width = |width: u8, kinds: [naga::ScalarKind; 2]| {
        let is = move |scalar: &Scalar| scalar.width == width && kinds.contains(&scalar.kind);
        module.types.iter().any(|(_, ty)| match &ty.inner {
            TypeInner::Scalar(scalar) | TypeInner::Vector { scalar, .. } => is(scalar),
            _ => false,
        })
    };
    let functions = module.functions.iter().map(|(_, function)| function);
    let mut functions = functions.chain(module.entry_points.iter().map(|entry| &entry.function));
    let built_in = |function: &naga::Function| {
        function.arguments.iter().any(|argument| {
            use naga::BuiltIn::{SubgroupInvocationId, SubgroupSize};
            matches!(argument.binding, Some(naga::Binding::BuiltIn(SubgroupInvocationId | SubgroupSize)))
        })
    };
    let result = |function: &naga::Function| {
        function.expressions.iter().any(|(_, expression)| {
            matches!(expression, Expression::SubgroupBallotResult | Expression::SubgroupOperationResult { .. })
        })
    };
    Needs {
        subgroups: functions.any(|function| built_in(function) || result(function)),
        halves: of_width(2, [naga::ScalarKind::Float; 2]),
        wide: of_width(8, [naga::ScalarKind::Sint, naga::ScalarKind::Uint]),
    }
}

/// Turns a panic of one of naga's writers into an error.
fn caught<T>(write: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(write)).unwrap_or_else(|_| Err("the writer panicked".to_owned()))
}

impl Kernel {
    fn policies(&self) -> BoundsCheckPolicies {
        let policy = if self.checked { BoundsCheckPolicy::Restrict } else { BoundsCheckPolicy::Unchecked };
        BoundsCheckPolicies { index: policy, buffer: policy, image_load: policy, binding_array: policy }
    }

    /// SPIR-V as in wgpu's Vulkan backend on a Vulkan 1.3 device.
    pub fn spirv(&self) -> Result<Vec<u32>, String> {
        let options = spv::Options {
            lang_version: (1, 6),
            flags: spv::WriterFlags::LABEL_VARYINGS,
            fake_missing_bindings: false,
            binding_map: bindings(&self.module)
                .map(|(at, _)| {
                    let to = spv::BindingInfo { descriptor_set: at.group, binding: at.binding, ..Default::default() };
                    (at, to)
                })
                .collect(),
            bounds_check_policies: self.policies(),
            zero_initialize_workgroup_memory: if self.checked {
                spv::ZeroInitializeWorkgroupMemoryMode::Native
            } else {
                spv::ZeroInitializeWorkgroupMemoryMode::None
            },
            force_loop_bounding: self.checked,
            ..Default::default()
        };
        let entry = spv::PipelineOptions { entry_point: ENTRY.to_owned(), shader_stage: ShaderStage::Compute };
        caught(|| spv::write_vec(&self.module, &self.info, &options, Some(&entry)).map_err(|error| error.to_string()))
    }

    /// MSL as in wgpu's Metal backend. Buffers use the slots of their bindings. Slot 30 has the array sizes.
    pub fn msl(&self) -> Result<String, String> {
        let target = |(at, variable): (ResourceBinding, &GlobalVariable)| {
            let slot = at.binding as u8;
            let resource = resource(&self.module, variable);
            let is_texture = matches!(resource, Resource::Texture | Resource::StorageTexture);
            let target = msl::BindTarget {
                buffer: (!is_texture).then_some(slot),
                texture: is_texture.then_some(slot),
                mutable: matches!(resource, Resource::Storage(true) | Resource::StorageTexture),
                ..Default::default()
            };
            (at, target)
        };
        let resources = msl::EntryPointResources {
            resources: bindings(&self.module).map(target).collect(),
            sizes_buffer: Some(30),
            ..Default::default()
        };
        let options = msl::Options {
            // macOS 12 and iOS 15.
            lang_version: (2, 4),
            per_entry_point_map: [(ENTRY.to_owned(), resources)].into(),
            fake_missing_bindings: false,
            bounds_check_policies: self.policies(),
            zero_initialize_workgroup_memory: self.checked,
            force_loop_bounding: self.checked,
            ..Default::default()
        };
        let pipeline =
            msl::PipelineOptions { entry_point: Some((ShaderStage::Compute, ENTRY.to_owned())), ..Default::default() };
        caught(|| {
            let (text, info) =
                msl::write_string(&self.module, &self.info, &options, &pipeline).map_err(|error| error.to_string())?;
            // Binding errors are reported per entry point.
            info.entry_point_names
                .into_iter()
                .try_for_each(|name| name.map(drop))
                .map_err(|error| error.to_string())?;
            Ok(text)
        })
    }

    /// HLSL as in wgpu's DirectX backend, for the lowest shader model that supports the text. The FXC compiler supports
    /// only 5.1.
    pub fn hlsl(&self) -> Result<String, String> {
        let target = |(at, _): (ResourceBinding, &GlobalVariable)| {
            (at, hlsl::BindTarget { space: at.group as u8, register: at.binding, ..Default::default() })
        };
        let options = hlsl::Options {
            shader_model: match self.needs {
                needs if needs.nothing() => hlsl::ShaderModel::V5_1,
                Needs { halves: false, .. } => hlsl::ShaderModel::V6_0,
                _ => hlsl::ShaderModel::V6_2,
            },
            binding_map: bindings(&self.module).map(target).collect(),
            fake_missing_bindings: false,
            zero_initialize_workgroup_memory: self.checked,
            restrict_indexing: self.checked,
            force_loop_bounding: self.checked,
            ..Default::default()
        };
        let pipeline = hlsl::PipelineOptions { entry_point: Some((ShaderStage::Compute, ENTRY.to_owned())) };
        caught(|| {
            let mut text = String::new();
            let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
            let written = writer.write(&self.module, &self.info, None).map_err(|error| error.to_string())?;
            written
                .entry_point_names
                .into_iter()
                .try_for_each(|name| name.map(drop))
                .map_err(|error| error.to_string())?;
            Ok(text)
        })
    }

    /// GLSL as in wgpu's OpenGL backend on OpenGL ES 3.1. `None` if the text needs features beyond that version.
    pub fn glsl(&self) -> Option<Result<String, String>> {
        if !self.needs.nothing() {
            return None;
        }
        let options = glsl::Options {
            version: glsl::Version::new_gles(310),
            writer_flags: glsl::WriterFlags::empty(),
            binding_map: bindings(&self.module).map(|(at, _)| (at, at.binding as u8)).collect(),
            zero_initialize_workgroup_memory: self.checked,
        };
        let pipeline = glsl::PipelineOptions {
            shader_stage: ShaderStage::Compute,
            entry_point: ENTRY.to_owned(),
            multiview: None,
        };
        Some(caught(|| {
            let mut text = String::new();
            // wgpu leaves bounds checks to the driver here.
            let policies = BoundsCheckPolicies {
                index: BoundsCheckPolicy::Unchecked,
                buffer: BoundsCheckPolicy::Unchecked,
                image_load: BoundsCheckPolicy::Unchecked,
                binding_array: BoundsCheckPolicy::Unchecked,
            };
            let mut writer = glsl::Writer::new(&mut text, &self.module, &self.info, &options, &pipeline, policies)
                .map_err(|error| error.to_string())?;
            writer.write().map_err(|error| error.to_string())?;
            Ok(text)
        }))
    }
}

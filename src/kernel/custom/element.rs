//! Elementwise kernels: scalar functions that become part of generated kernels.

use core::hash::BuildHasher;

use bevy::platform::hash::FixedHasher;
use naga::{AddressSpace, TypeInner};
use smallvec::SmallVec;

use super::CustomKernel;
use super::code::{next_id, validator};
use super::loops::has_loops;
use super::params::class_of;
use super::text::{Text, prefixed};
use crate::error::KernelError;
use crate::ir::{Class, ElementFunction, MAX_ARGUMENTS};
use crate::kernel::{uniformity, wgsl_type};

/// Parses and validates an elementwise kernel.
pub(super) fn compile(
    kernel: &CustomKernel,
    source: &str,
    features: Option<wgpu::Features>,
) -> Result<ElementFunction, KernelError> {
    let name = kernel.name;
    let described = !kernel.inputs.is_empty() || !kernel.outputs.is_empty() || !kernel.scratch.is_empty();
    if described || kernel.params.is_some() || kernel.cpu.is_some() {
        let reason = "an elementwise kernel has no bindings and no params: its operands are the function's arguments, and its \
                      CPU function is given by cpu_element";
        return Err(KernelError::Description { kernel: name, reason: reason.to_owned() });
    }
    let text = Text::new(name, source)?;
    let module = text.parse()?;
    let place = text.place_of_function(kernel.entry);
    let wrong = |place, reason: String| Err(KernelError::Elementwise { kernel: name, place, reason });
    let Some((_, function)) = module.functions.iter().find(|(_, f)| f.name.as_deref() == Some(kernel.entry)) else {
        let found = module.functions.iter().filter_map(|(_, f)| f.name.clone()).collect();
        return Err(KernelError::EntryPoint { kernel: name, entry: kernel.entry, found });
    };
    if let Some((handle, variable)) =
        module.global_variables.iter().find(|(_, variable)| variable.space != AddressSpace::Private)
    {
        return Err(KernelError::UnknownBinding {
            kernel: name,
            place: text.place_of(module.global_variables.get_span(handle)),
            binding: variable.name.clone().unwrap_or_default(),
        });
    }
    if let Some(entry) = module.entry_points.first() {
        return wrong(
            text.place_of_function(&entry.name),
            "an elementwise kernel must not have an entry point".to_owned(),
        );
    }
    let class = |ty: naga::Handle<naga::Type>| match module.types[ty].inner {
        TypeInner::Scalar(scalar) => class_of(scalar),
        _ => None,
    };
    let arguments: Option<SmallVec<[Class; MAX_ARGUMENTS]>> =
        function.arguments.iter().map(|argument| class(argument.ty)).collect();
    let result = function.result.as_ref().and_then(|result| class(result.ty));
    let (Some(arguments), Some(result)) = (arguments, result) else {
        return wrong(place, format!("`{}` must take and return f32, i32 or u32", kernel.entry));
    };
    if arguments.is_empty() || arguments.len() > MAX_ARGUMENTS {
        return wrong(place, format!("`{}` must take one to {MAX_ARGUMENTS} numbers", kernel.entry));
    }
    validator(features).validate(&module).map_err(|error| text.invalid(&error))?;
    if let Some(barrier) = uniformity::any_barrier(&module, function) {
        let place = text.place_of(barrier.span);
        return Err(KernelError::Barrier { kernel: name, place, function: barrier.function });
    }
    if let Some(directive) =
        ["enable", "requires", "diagnostic"].into_iter().find(|d| text.wgsl.trim_start().starts_with(d))
    {
        return wrong(text.place(0), format!("`{directive}` is not supported in elementwise kernels"));
    }
    if let Some(cpu) = &kernel.cpu_element
        && (cpu.arguments != &arguments[..] || cpu.result != result)
    {
        let list = |classes: &[Class]| classes.iter().map(|&c| wgsl_type(c)).collect::<Vec<_>>().join(", ");
        let (wgsl, rust) = (list(&arguments), list(cpu.arguments));
        let (gives, gives_rust) = (wgsl_type(result), wgsl_type(cpu.result));
        return wrong(
            place,
            format!("the function is ({wgsl}) -> {gives} in WGSL but ({rust}) -> {gives_rust} on the CPU"),
        );
    }
    // The prefix is a hash of the text, so the same text gives the same pipeline in every run.
    let loops = (!kernel.trusted && has_loops(&module, function)).then_some(kernel.loop_bound);
    let prefix = format!("u{:016x}_", FixedHasher.hash_one(&text.wgsl));
    let prefixed = prefixed(&text.wgsl, &prefix);
    if let Err(error) = naga::front::wgsl::parse_str(&prefixed) {
        let message = format!("the text cannot be embedded in a generated kernel: {}", error.message());
        return Err(KernelError::Wgsl { kernel: name, place: None, message });
    }
    Ok(ElementFunction {
        id: next_id(),
        name,
        trusted: kernel.trusted,
        arguments,
        result,
        function: format!("{prefix}{}", kernel.entry),
        text: prefixed,
        loops,
        cpu: kernel.cpu_element.clone(),
    })
}

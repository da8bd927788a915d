//! Every text parses, validates and keeps its barriers in uniform control flow.

use crate::kernel::{Launch, uniformity};

/// Fails if the text of a launch is not valid.
pub(super) fn check(launch: &Launch) {
    let module = naga::front::wgsl::parse_str(&launch.wgsl)
        .unwrap_or_else(|e| panic!("{}\n{}", e.emit_to_string(&launch.wgsl), launch.wgsl));
    use naga::valid::Capabilities;
    // Packing halves is core WebGPU; naga has it as a capability for the sake of old OpenGL.
    let capabilities = Capabilities::default() | Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let mut validator = naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities);
    validator
        .subgroup_stages(naga::valid::ShaderStages::COMPUTE)
        .subgroup_operations(naga::valid::SubgroupOperationSet::all());
    validator.validate(&module).unwrap_or_else(|e| panic!("{}\n{}", e.emit_to_string(&launch.wgsl), launch.wgsl));
    uniformity::check(&module).unwrap_or_else(|e| panic!("{}: {e}\n{}", launch.name, launch.wgsl));
}

//! Compiles with AMD's compiler without an AMD GPU. RADV, Mesa's Vulkan driver, has a device without hardware that
//! compiles pipelines and runs nothing.
//!
//! All figures are the compiler's statements about its own code. Cycles come from its cost model and are not measured.

use core::ffi::{CStr, c_char};
use std::collections::BTreeMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};

use ash::vk;

use crate::Result;
use crate::translate::{ENTRY, Kernel, Resource};

/// The supported chips and their architectures.
pub const FAMILIES: [(&str, &str); 5] =
    [("navi21", "RDNA 2"), ("navi10", "RDNA 1"), ("gfx1100", "RDNA 3"), ("vega10", "GCN 5"), ("polaris10", "GCN 4")];

/// The driver manifest for the Vulkan loader. `LAB_RADV` overrides it. `None` if RADV is not installed.
pub fn driver() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("LAB_RADV") {
        return Some(path.into());
    }
    ["/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d"].iter().find_map(|folder| {
        let files = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        let is_radv = |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("radeon_icd") && name.ends_with(".json") && name.contains(std::env::consts::ARCH)
        };
        files.into_iter().find(|path| is_radv(path))
    })
}

/// Environment variables that make the Vulkan loader use RADV, and RADV emulate a chip.
pub fn environment(driver: &Path, family: &str) -> [(&'static str, String); 4] {
    let path = driver.display().to_string();
    [
        ("VK_DRIVER_FILES", path.clone()),
        // The name in older loaders.
        ("VK_ICD_FILENAMES", path),
        ("RADV_FORCE_FAMILY", family.to_owned()),
        // Mesa's device-select layer does not work with the null device.
        ("NODEVICE_SELECT", "1".to_owned()),
    ]
}

/// The compiler's report about a kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compiled {
    /// Its statistics, by the driver's names.
    pub statistics: BTreeMap<String, u64>,
    /// The machine code.
    pub assembly: String,
}

impl Compiled {
    /// A statistic by the driver's name. `None` if this driver does not report it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.statistics.get(name).copied()
    }

    /// Number of spilled registers.
    pub fn spills(&self) -> u64 {
        self.get("Spilled VGPRs").unwrap_or(0) + self.get("Spilled SGPRs").unwrap_or(0)
    }
}

/// The null device.
pub struct Radv {
    device: ash::Device,
    executables: ash::khr::pipeline_executable_properties::Device,
    instance: ash::Instance,
    _entry: ash::Entry,
    /// Name of the device, which contains the chip.
    pub name: String,
    /// Name and version of the driver.
    pub driver: String,
    /// Whether the chip has 16-bit floats.
    pub halves: bool,
}

impl Radv {
    /// Opens the null device. The [environment] selects the chip.
    pub fn open() -> Result<Self> {
        // SAFETY: this loads the Vulkan loader of the system.
        let entry = unsafe { ash::Entry::load()? };
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let create = vk::InstanceCreateInfo::default().application_info(&application);
        // SAFETY: the structures live until the call returns, here and below.
        let instance = unsafe { entry.create_instance(&create, None)? };
        // SAFETY: the instance is alive.
        let physical = unsafe { instance.enumerate_physical_devices()? };
        let physical = *physical.first().ok_or("RADV has no device: this version may not know the chip")?;
        let mut about = vk::PhysicalDeviceDriverProperties::default();
        let mut properties = vk::PhysicalDeviceProperties2::default().push_next(&mut about);
        // SAFETY: the instance is alive, and the chain is of structures that a device of Vulkan 1.2 fills.
        unsafe { instance.get_physical_device_properties2(physical, &mut properties) };
        let name = text(&properties.properties.device_name);
        let driver = format!("{} {}", text(&about.driver_name), text(&about.driver_info));

        // Enables the features that kernels may use, as far as the chip has them.
        let mut storage = vk::PhysicalDeviceVulkan11Features::default();
        let mut types = vk::PhysicalDeviceVulkan12Features::default();
        let mut more = vk::PhysicalDeviceVulkan13Features::default();
        let mut features =
            vk::PhysicalDeviceFeatures2::default().push_next(&mut storage).push_next(&mut types).push_next(&mut more);
        // SAFETY: as above.
        unsafe { instance.get_physical_device_features2(physical, &mut features) };
        let features = features.features;
        let halves = types.shader_float16 != 0 && storage.storage_buffer16_bit_access != 0;
        let on = |available: vk::Bool32| available != 0;
        let mut storage = vk::PhysicalDeviceVulkan11Features::default().storage_buffer16_bit_access(halves);
        let mut types =
            vk::PhysicalDeviceVulkan12Features::default().shader_float16(halves).shader_int8(on(types.shader_int8));
        let mut more = vk::PhysicalDeviceVulkan13Features::default()
            .shader_integer_dot_product(on(more.shader_integer_dot_product))
            .shader_zero_initialize_workgroup_memory(on(more.shader_zero_initialize_workgroup_memory))
            .subgroup_size_control(on(more.subgroup_size_control));
        let mut wanted =
            vk::PhysicalDevicePipelineExecutablePropertiesFeaturesKHR::default().pipeline_executable_info(true);
        let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
        let extensions = [ash::khr::pipeline_executable_properties::NAME.as_ptr()];
        let create = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&extensions)
            .enabled_features(&features)
            .push_next(&mut storage)
            .push_next(&mut types)
            .push_next(&mut more)
            .push_next(&mut wanted);
        // SAFETY: as above.
        let device = unsafe { instance.create_device(physical, &create, None)? };
        let executables = ash::khr::pipeline_executable_properties::Device::new(&instance, &device);
        Ok(Self { device, executables, instance, _entry: entry, name, driver, halves })
    }

    /// Compiles a kernel.
    pub fn compile(&self, kernel: &Kernel, spirv: &[u32]) -> Result<Compiled> {
        let bindings: Vec<_> = kernel
            .bindings
            .iter()
            .map(|&(binding, resource)| {
                vk::DescriptorSetLayoutBinding::default()
                    .binding(binding)
                    .descriptor_type(match resource {
                        Resource::Uniform => vk::DescriptorType::UNIFORM_BUFFER,
                        Resource::Storage(_) => vk::DescriptorType::STORAGE_BUFFER,
                        Resource::Texture => vk::DescriptorType::SAMPLED_IMAGE,
                        Resource::StorageTexture => vk::DescriptorType::STORAGE_IMAGE,
                    })
                    .descriptor_count(1)
                    .stage_flags(vk::ShaderStageFlags::COMPUTE)
            })
            .collect();
        let entry = CString::new(ENTRY)?;
        // wgpu sets this on every device with subgroups.
        let varying = vk::PipelineShaderStageCreateFlags::ALLOW_VARYING_SUBGROUP_SIZE;
        // SAFETY: naga wrote the SPIR-V, the structures outlive the calls, and the device outlives every object.
        unsafe {
            let module = self.device.create_shader_module(&vk::ShaderModuleCreateInfo::default().code(spirv), None)?;
            let create = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
            let group = self.device.create_descriptor_set_layout(&create, None)?;
            let groups = [group];
            let create = vk::PipelineLayoutCreateInfo::default().set_layouts(&groups);
            let layout = self.device.create_pipeline_layout(&create, None)?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .flags(varying)
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(&entry);
            let flags = vk::PipelineCreateFlags::CAPTURE_STATISTICS_KHR
                | vk::PipelineCreateFlags::CAPTURE_INTERNAL_REPRESENTATIONS_KHR;
            let create = [vk::ComputePipelineCreateInfo::default().flags(flags).stage(stage).layout(layout)];
            let made = self.device.create_compute_pipelines(vk::PipelineCache::null(), &create, None);
            let (pipelines, compiled) = match made {
                Ok(pipelines) => {
                    let compiled = self.ask(pipelines[0]);
                    (pipelines, compiled)
                }
                Err((pipelines, error)) => (pipelines, Err(error.into())),
            };
            pipelines.into_iter().for_each(|pipeline| self.device.destroy_pipeline(pipeline, None));
            self.device.destroy_pipeline_layout(layout, None);
            self.device.destroy_descriptor_set_layout(group, None);
            self.device.destroy_shader_module(module, None);
            compiled
        }
    }

    /// # Safety
    ///
    /// The pipeline is alive, and was made with both capture flags.
    unsafe fn ask(&self, pipeline: vk::Pipeline) -> Result<Compiled> {
        let executable = vk::PipelineExecutableInfoKHR::default().pipeline(pipeline);
        let mut compiled = Compiled::default();
        // SAFETY: the caller promises it.
        for statistic in unsafe { self.executables.get_pipeline_executable_statistics(&executable)? } {
            // SAFETY: the format tells which field of the union is set. All of RADV's are integers.
            let value = match statistic.format {
                vk::PipelineExecutableStatisticFormatKHR::UINT64 => unsafe { statistic.value.u64 },
                _ => continue,
            };
            compiled.statistics.insert(text(&statistic.name), value);
        }
        let ask = self.executables.fp().get_pipeline_executable_internal_representations_khr;
        // SAFETY: as above. The first call returns the sizes, the second one the data.
        let mut forms = unsafe { self.executables.get_pipeline_executable_internal_representations(&executable)? };
        let mut places: Vec<Vec<u8>> = forms.iter().map(|form| vec![0; form.data_size + 1]).collect();
        for (form, place) in forms.iter_mut().zip(&mut places) {
            form.p_data = place.as_mut_ptr().cast();
        }
        let mut count = forms.len() as u32;
        // SAFETY: each buffer has the size that the first call returned.
        unsafe { ask(self.device.handle(), &executable, &mut count, forms.as_mut_ptr()).result()? };
        for (form, place) in forms.iter().zip(&places) {
            if text(&form.name) == "Assembly" {
                let end = place.iter().position(|byte| *byte == 0).unwrap_or(place.len());
                compiled.assembly = String::from_utf8_lossy(&place[..end]).into_owned();
            }
        }
        Ok(compiled)
    }
}

impl Drop for Radv {
    fn drop(&mut self) {
        // SAFETY: all objects of the device have been destroyed.
        unsafe {
            self.device.destroy_device(None);
            self.instance.destroy_instance(None);
        }
    }
}

/// Reads a fixed-size string of Vulkan.
fn text(field: &[c_char]) -> String {
    let bytes: Vec<u8> = field.iter().map(|byte| *byte as u8).collect();
    CStr::from_bytes_until_nul(&bytes).map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
}

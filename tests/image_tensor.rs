//! Images and tensors have the same pixels on both backends, including camera views. On the GPU, pixels never leave the
//! device.

use bevy::asset::RenderAssetUsages;
use bevy::camera::RenderTarget;
use bevy::prelude::*;
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat, TextureUsages};
use bevy_tensor_compute::image::{
    ImageCrop, ImageFromTensor, ImageLayout, ImageSettings, TensorFromImage, data_from_image, image_for_tensor,
};
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig, assert_close};

/// A rig with images. On the CPU it has no renderer.
fn rig(backend: Backend) -> Rig {
    let mut rig = Rig::new(backend);
    rig.app.init_resource::<Assets<Image>>();
    rig
}

fn image(width: u32, height: u32, format: TextureFormat, data: Vec<u8>) -> Image {
    let size = Extent3d { width, height, depth_or_array_layers: 1 };
    Image::new(size, TextureDimension::D2, data, format, RenderAssetUsages::default())
}

/// Varying bytes that include every value.
fn noise(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i * 167 + i / 256) as u8).collect()
}

fn add(rig: &mut Rig, image: Image) -> Handle<Image> {
    rig.app.world_mut().resource_mut::<Assets<Image>>().add(image)
}

/// Updates until the tensor has the expected pixels, with a tolerance of 1 in 255.
fn expect_pixels(rig: &mut Rig, tensor: Entity, expected: &[u8], what: &str) {
    let mut last = Vec::new();
    for _ in 0..40 {
        rig.app.update();
        if rig.app.world().get::<Tensor>(tensor).is_none() {
            continue;
        }
        last = rig.read(tensor).as_slice::<u8>().unwrap().to_vec();
        if last.len() == expected.len() && last.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= 1) {
            return;
        }
    }
    let differ = last.iter().zip(expected).position(|(a, b)| a.abs_diff(*b) > 1);
    panic!("{what}: {} bytes of {}, the first that differs is {differ:?}", last.len(), expected.len());
}

#[test]
fn an_images_pixels_are_its_tensors() {
    for backend in BACKENDS {
        // A width with unaligned rows.
        for format in [TextureFormat::Rgba8UnormSrgb, TextureFormat::Rgba8Unorm, TextureFormat::Bgra8UnormSrgb] {
            let mut rig = rig(backend);
            let data = noise(37 * 21 * 4);
            let mut expected = data.clone();
            if format == TextureFormat::Bgra8UnormSrgb {
                expected.chunks_mut(4).for_each(|pixel| pixel.swap(0, 2));
            }
            let image = add(&mut rig, image(37, 21, format, data));
            let tensor = rig.app.world_mut().spawn(TensorFromImage { image, live: false }).id();
            expect_pixels(&mut rig, tensor, &expected, &format!("{format:?} on the {backend}"));
            assert_eq!(rig.app.world().get::<Tensor>(tensor).unwrap().shape()[..], [21, 37, 4]);
            assert!(rig.faults().is_empty(), "{:?}", rig.faults());
        }
    }
}

#[test]
fn on_the_gpu_no_pixel_goes_over_the_host_and_steady_frames_make_nothing() {
    let mut rig = rig(Backend::Gpu);
    for _ in 0..3 {
        let image = add(&mut rig, image(64, 64, TextureFormat::Rgba8UnormSrgb, noise(64 * 64 * 4)));
        let shown = add(&mut rig, image_for_tensor(64, 64));
        let pixels = (TensorFromImage { image, live: true }, ImageFromTensor { image: shown, live: true });
        rig.app.world_mut().spawn(pixels);
    }
    for _ in 0..10 {
        rig.app.update();
    }
    let before = rig.figures();
    for _ in 0..10 {
        rig.app.update();
    }
    let after = rig.figures();
    assert_eq!(after.uploaded_bytes, before.uploaded_bytes);
    assert_eq!(after.downloaded_bytes, before.downloaded_bytes);
    assert_eq!(after.readbacks, before.readbacks);
    assert_eq!(after.dispatches, before.dispatches + 60, "three images each way a frame");
    assert_eq!(after.submits, before.submits + 20, "one submission each way");
    assert_eq!(after.bind_groups_made, before.bind_groups_made);
    assert_eq!(after.buffers_allocated, before.buffers_allocated);
    assert!(rig.faults().is_empty(), "{:?}", rig.faults());
}

#[test]
fn images_beyond_a_binding_are_copied_in_bands() {
    let mut rig = Rig::with_binding_limit(1 << 20);
    let data = noise(611 * 597 * 4);
    let image = add(&mut rig, image(611, 597, TextureFormat::Rgba8Unorm, data.clone()));
    let tensor = rig.app.world_mut().spawn(TensorFromImage { image, live: false }).id();
    expect_pixels(&mut rig, tensor, &data, "in bands");
    let shown = add(&mut rig, image_for_tensor(611, 597));
    rig.app.world_mut().entity_mut(tensor).insert(ImageFromTensor { image: shown.clone(), live: false });
    let seen = rig.app.world_mut().spawn(TensorFromImage { image: shown, live: true }).id();
    expect_pixels(&mut rig, seen, &data, "and back");
    assert!(rig.faults().is_empty(), "{:?}", rig.faults());
}

#[test]
fn an_image_that_comes_late_is_copied_when_it_is_there() {
    for backend in BACKENDS {
        let mut rig = rig(backend);
        let data = noise(12 * 5 * 4);
        let handle = rig.app.world().resource::<Assets<Image>>().reserve_handle();
        let tensor = Tensor::zeros([5, 12, 4], DType::U8).unwrap();
        let tensor = rig.app.world_mut().spawn((tensor, TensorFromImage { image: handle.clone(), live: false })).id();
        for _ in 0..3 {
            rig.app.update();
        }
        let late = image(12, 5, TextureFormat::Rgba8Unorm, data.clone());
        rig.app.world_mut().resource_mut::<Assets<Image>>().insert(&handle, late).unwrap();
        expect_pixels(&mut rig, tensor, &data, &format!("late on the {backend}"));
    }
}

#[test]
fn pixels_are_shown_after_the_work_that_makes_them_also_while_kernels_compile() {
    let mut rig = Rig::with(Backend::Gpu, TensorComputePlugin::default());
    let shown = add(&mut rig, image_for_tensor(8, 8));
    let tensor = rig.spawn(Tensor::zeros([8, 8, 4], DType::U8).unwrap());
    rig.record(move |ops| {
        let places = ops.arange(0.0, 1.0, 256, DType::I32)?;
        let places = ops.reshape(places, &[8, 8, 4])?;
        let values = ops.cast(places, DType::U8)?;
        ops.store(values, tensor)
    })
    .unwrap();
    // Once, in the frame of the work.
    rig.app.world_mut().entity_mut(tensor).insert(ImageFromTensor { image: shown.clone(), live: false });
    let expected: Vec<u8> = (0..=255).collect();
    let seen = rig.app.world_mut().spawn(TensorFromImage { image: shown, live: true }).id();
    expect_pixels(&mut rig, seen, &expected, "shown");
}

#[test]
fn views_are_shown_where_their_pixels_lie() {
    for backend in BACKENDS {
        let mut rig = rig(backend);
        let bytes = noise(3 * 20 * 30 * 4);
        let pictures = Tensor::from_slice(&bytes, [3, 20, 30, 4]).unwrap();
        // The second of three pictures, and a region in its middle.
        let second = pictures.slice(0, 1, 2).unwrap().reshape([20, 30, 4]).unwrap();
        let part = second.slice(0, 5, 12).unwrap().slice(1, 3, 16).unwrap();
        let shown = add(&mut rig, image_for_tensor(13, 7));
        rig.app.world_mut().spawn((part, ImageFromTensor { image: shown.clone(), live: true }));
        let at = |row: usize, column: usize| &bytes[((20 + 5 + row) * 30 + 3 + column) * 4..][..4];
        let expected: Vec<u8> = (0..7 * 13).flat_map(|i| at(i / 13, i % 13)).copied().collect();
        let seen = rig.app.world_mut().spawn(TensorFromImage { image: shown, live: true }).id();
        expect_pixels(&mut rig, seen, &expected, &format!("a part on the {backend}"));

        // An image is copied to a view. The surrounding pixels stay unchanged.
        let source = image(13, 7, TextureFormat::Rgba8Unorm, vec![9; 13 * 7 * 4]);
        let source = add(&mut rig, source);
        let whole = rig.spawn(pictures.clone());
        let part = pictures.slice(0, 0, 1).unwrap().reshape([20, 30, 4]).unwrap();
        let part = part.slice(0, 5, 12).unwrap().slice(1, 3, 16).unwrap();
        let part = rig.app.world_mut().spawn((part, TensorFromImage { image: source, live: false })).id();
        expect_pixels(&mut rig, part, &[9; 13 * 7 * 4], &format!("into a part on the {backend}"));
        let inside = |i: usize| (5..12).contains(&(i / 120)) && (3..16).contains(&(i / 4 % 30));
        let expected: Vec<u8> = bytes.iter().enumerate().map(|(i, &b)| if inside(i) { 9 } else { b }).collect();
        assert_eq!(rig.read(whole).as_slice::<u8>().unwrap(), expected);
        assert!(rig.faults().is_empty(), "{:?}", rig.faults());
    }
}

#[test]
fn images_that_cannot_be_copied_are_told_once_and_hinder_nobody() {
    let mut rig = rig(Backend::Gpu);
    let cpu = rig.app.world_mut().spawn((TensorModel, ModelBackend(Backend::Cpu))).id();
    let changed = |change: fn(&mut Image)| {
        let mut image = image(4, 4, TextureFormat::Rgba8Unorm, vec![1; 64]);
        change(&mut image);
        image
    };
    let deaf = changed(|image| image.texture_descriptor.usage = TextureUsages::COPY_DST);
    let integers = changed(|image| image.texture_descriptor.format = TextureFormat::Rgba8Uint);
    let deep = changed(|image| {
        image.texture_descriptor.size = Extent3d { width: 2, height: 2, depth_or_array_layers: 4 };
        image.texture_descriptor.dimension = TextureDimension::D3;
    });
    let target = Image::new_target_texture(4, 4, TextureFormat::Rgba8UnormSrgb, None);
    let plain = changed(|_| ());
    let pixels = || Tensor::zeros([4, 4, 4], DType::U8).unwrap();
    let [deaf, integers, deep, target, plain] = [deaf, integers, deep, target, plain].map(|image| add(&mut rig, image));
    let shown = add(&mut rig, image_for_tensor(4, 4));
    let into = |image: &Handle<Image>| TensorFromImage { image: image.clone(), live: true };
    let show = |image: &Handle<Image>| ImageFromTensor { image: image.clone(), live: true };
    let world = rig.app.world_mut();
    let turned = Tensor::zeros([4, 4, 4], DType::U8).unwrap().permute(&[1, 0, 2]).unwrap();
    let mut bad = vec![
        (world.spawn(into(&deaf)).id(), "TEXTURE_BINDING"),
        (world.spawn(into(&integers)).id(), "Rgba8Uint"),
        (world.spawn(into(&deep)).id(), "2 by 2"),
        (world.spawn((into(&target), TensorOf(cpu))).id(), "COPY_SRC"),
        (world.spawn((pixels(), show(&plain))).id(), "image_for_tensor"),
        (world.spawn((Tensor::zeros([4, 4, 4], DType::F32).unwrap(), show(&shown))).id(), "is f32 of shape [4, 4, 4]"),
        (world.spawn((Tensor::zeros([4, 3, 4], DType::U8).unwrap(), show(&shown))).id(), "is u8 of shape [4, 3, 4]"),
        (world.spawn((turned, show(&shown))).id(), "not adjacent"),
    ];
    let good = world.spawn(into(&plain)).id();
    expect_pixels(&mut rig, good, &[1; 64], "beside the bad ones");
    for _ in 0..10 {
        rig.app.update();
    }
    for fault in rig.faults() {
        let TensorFault::Image { entity, error } = &fault else { panic!("{fault}") };
        let at = bad.iter().position(|(bad, _)| bad == entity);
        let (_, part) = bad.swap_remove(at.unwrap_or_else(|| panic!("{fault} a second time")));
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(bad.is_empty(), "{bad:?}");
}

#[test]
fn pixels_become_a_networks_input() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        // Two by four pixels: opaque, half transparent and fully transparent.
        let bytes: Vec<u8> =
            (0..8).flat_map(|i| [i * 30, 255 - i * 30, 7 * i, [255, 128, 0][i as usize % 3]]).collect();
        let pixels = rig.spawn(Tensor::from_slice(&bytes, [2, 4, 4]).unwrap());
        let settings = ImageSettings {
            crop: ImageCrop::Square,
            mean: [0.5, 0.25, 0.0],
            deviation: [0.5, 2.0, 1.0],
            background: [1.0, 0.0, 0.5],
            ..default()
        };
        let actual = rig.compute(move |ops| ops.image_input(pixels, &settings)).unwrap();
        assert_eq!(actual.shape()[..], [1, 3, 2, 2]);
        let mut expected = Vec::new();
        for c in 0..3 {
            for at in [1, 2, 5, 6] {
                let (colour, alpha) = (f32::from(bytes[at * 4 + c]) / 255.0, f32::from(bytes[at * 4 + 3]) / 255.0);
                let shown = colour * alpha + settings.background[c] * (1.0 - alpha);
                expected.push((shown - settings.mean[c]) / settings.deviation[c]);
            }
        }
        assert_close(&actual.to_f32(), &expected, 1e-5, 1e-5, &format!("on the {backend}"));

        // Channels-last has the same numbers in another order.
        let last = ImageSettings { layout: ImageLayout::Nhwc, ..settings };
        let actual = rig.compute(move |ops| ops.image_input(pixels, &last)).unwrap();
        assert_eq!(actual.shape()[..], [1, 2, 2, 3]);
        let turned: Vec<f32> = (0..12).map(|i| expected[i % 3 * 4 + i / 3]).collect();
        assert_close(&actual.to_f32(), &turned, 1e-5, 1e-5, &format!("channels last on the {backend}"));

        // The reverse, for opaque pixels.
        let bytes: Vec<u8> = noise(6 * 5 * 4).chunks(4).flat_map(|p| [p[0], p[1], p[2], 255]).collect();
        let pixels = rig.spawn(Tensor::from_slice(&bytes, [6, 5, 4]).unwrap());
        let plain = ImageSettings { layout: ImageLayout::Nhwc, crop: ImageCrop::Whole, ..settings };
        let back = rig.compute(move |ops| {
            let input = ops.image_input(pixels, &plain)?;
            ops.image_pixels(input, &plain)
        });
        assert_eq!(back.unwrap().as_slice::<u8>().unwrap(), bytes);
    }
}

#[test]
fn shrinking_skips_no_pixel() {
    for backend in BACKENDS {
        let mut rig = Rig::new(backend);
        // Stripes of one pixel: skipping pixels would make them black or white.
        let bytes: Vec<u8> =
            (0..64 * 64).flat_map(|i| [if i % 2 == 0 { 255 } else { 0 }; 3].into_iter().chain([255])).collect();
        let pixels = rig.spawn(Tensor::from_slice(&bytes, [64, 64, 4]).unwrap());
        let settings = ImageSettings { size: Some([8, 8]), ..default() };
        let actual = rig.compute(move |ops| ops.image_input(pixels, &settings)).unwrap().to_f32();
        // At the edges the filter covers half as many pixels.
        assert_close(&actual, &[0.5; 3 * 64], 0.1, 0.0, &format!("on the {backend}"));
    }
}

#[test]
fn invalid_pixels_and_crops_return_errors() {
    let mut rig = Rig::new(Backend::Cpu);
    let floats = rig.spawn(Tensor::zeros([4, 4, 4], DType::F32).unwrap());
    let error = rig.compute(move |ops| ops.image_input(floats, &ImageSettings::default())).unwrap_err();
    assert!(error.to_string().contains("pixels must be u8 [height, width, 4], not f32 [4, 4, 4]"), "{error}");
    let pixels = rig.spawn(Tensor::zeros([4, 4, 4], DType::U8).unwrap());
    let settings = ImageSettings { crop: ImageCrop::Rect(URect::new(2, 2, 9, 9)), ..default() };
    let error = rig.compute(move |ops| ops.image_input(pixels, &settings)).unwrap_err();
    assert!(matches!(error, OpError::Argument { .. }) && error.to_string().contains("4 by 4"), "{error}");
    let depth = image(2, 2, TextureFormat::Depth32Float, vec![0; 16]);
    assert!(data_from_image(&depth).unwrap_err().to_string().contains("Depth32Float"));
}

#[test]
fn pixels_are_shown_as_an_image() {
    for backend in BACKENDS {
        let mut rig = rig(backend);
        let bytes = noise(19 * 11 * 4);
        let shown = add(&mut rig, image_for_tensor(19, 11));
        let tensor = Tensor::from_slice(&bytes, [11, 19, 4]).unwrap();
        rig.app.world_mut().spawn((tensor, ImageFromTensor { image: shown.clone(), live: true }));
        match backend {
            Backend::Cpu => {
                let data = |app: &App| {
                    app.world().resource::<Assets<Image>>().get(&shown).and_then(|image| image.data.clone())
                };
                rig.step_until(|app| data(app).as_ref() == Some(&bytes));
            }
            // The image's CPU data is not updated, only its texture.
            Backend::Gpu => {
                let tensor = rig.app.world_mut().spawn(TensorFromImage { image: shown, live: true }).id();
                expect_pixels(&mut rig, tensor, &bytes, "shown and seen");
            }
        }
    }
}

#[test]
fn a_cameras_view_is_a_tensor_on_either_backend() {
    let mut rig = rig(Backend::Gpu);
    let mut target = Image::new_target_texture(50, 30, TextureFormat::Rgba8UnormSrgb, None);
    target.texture_descriptor.usage |= TextureUsages::COPY_SRC;
    let image = add(&mut rig, target);
    let colour = Color::srgb_u8(200, 100, 50);
    rig.app.world_mut().spawn((
        Camera2d,
        Camera { clear_color: colour.into(), ..default() },
        bevy::core_pipeline::tonemapping::Tonemapping::None,
        RenderTarget::Image(image.clone().into()),
    ));
    let expected: Vec<u8> = [200, 100, 50, 255].repeat(50 * 30);
    for backend in BACKENDS {
        let model = rig.app.world_mut().spawn((TensorModel, ModelBackend(backend))).id();
        let tensor =
            rig.app.world_mut().spawn((TensorFromImage { image: image.clone(), live: true }, TensorOf(model))).id();
        expect_pixels(&mut rig, tensor, &expected, &format!("on the {backend}"));
        rig.app.world_mut().entity_mut(tensor).despawn();
    }
}

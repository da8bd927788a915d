//! The denoiser gives what Open Image Denoise gives, on both backends. `tools/denoise_references.py` makes the results to
//! compare with; the scenes here follow the same formulas.

use std::path::Path;

use bevy::math::DVec3;
use bevy::prelude::*;
use bevy_tensor_compute::denoise::{DenoiseSettings, Denoiser};
use bevy_tensor_compute::formats::SafetensorsFile;
use bevy_tensor_compute::prelude::*;

use crate::common::{BACKENDS, Rig};

/// Colour with noise, albedo, normals, and colour without noise, each `[height, width, 3]`.
struct Picture {
    size: [usize; 2],
    color: Vec<f32>,
    albedo: Vec<f32>,
    normal: Vec<f32>,
    clean: Vec<f32>,
}

/// A uniform number in 0..1 of an integer, by a PCG hash.
fn number(i: u64) -> f64 {
    let x = (i as u32).wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((x >> ((x >> 28) + 4)) ^ x).wrapping_mul(277_803_737);
    (f64::from((word >> 22) ^ word) + 0.5) / 4_294_967_296.0
}

fn spheres(scene: u64) -> Vec<(DVec3, f64, DVec3)> {
    let sphere = |i: u64| {
        let n: Vec<f64> = (0..7).map(|k| number(1000 * scene + 10 * i + k)).collect();
        let radius = 0.3 + 0.5 * n[0];
        let colour = DVec3::new(n[3], n[4], n[5]) * 0.8 + 0.1;
        (DVec3::new(4.0 * n[1] - 2.0, radius, 3.5 * n[2] - 2.0), radius, colour)
    };
    (0..6).map(sphere).collect()
}

/// Distance, normal and albedo of the nearest surface. `None` is the sky.
fn nearest(origin: DVec3, direction: DVec3, spheres: &[(DVec3, f64, DVec3)]) -> Option<(f64, DVec3, DVec3)> {
    let mut best = None;
    let t = -origin.y / direction.y;
    if t > 1e-4 {
        let place = origin + direction * t;
        // The shift keeps pixels off the edges, where rounding would decide.
        let light = ((place.x + 0.37).floor() + place.z.floor()).rem_euclid(2.0) == 0.0;
        best = Some((t, DVec3::Y, DVec3::splat(if light { 0.8 } else { 0.3 })));
    }
    for &(centre, radius, colour) in spheres {
        let offset = origin - centre;
        let (b, c) = (offset.dot(direction), offset.dot(offset) - radius * radius);
        let d = b * b - c;
        let t = -b - d.max(0.0).sqrt();
        if d > 0.0 && t > 1e-4 && best.is_none_or(|(nearest, ..)| t < nearest) {
            best = Some((t, (origin + direction * t - centre) / radius, colour));
        }
    }
    best
}

fn render(scene: u64, height: usize, width: usize) -> Picture {
    let spheres = spheres(scene);
    let light = DVec3::new(0.5, 0.8, 0.4 + 0.1 * scene as f64).normalize();
    let [mut color, mut albedo, mut normal, mut clean] = [const { Vec::new() }; 4];
    for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
        let u = (x as f64 + 0.5 - width as f64 / 2.0) / height as f64 * 2.0;
        let v = -(y as f64 + 0.5 - height as f64 / 2.0) / height as f64 * 2.0;
        let (origin, direction) = (DVec3::new(0.0, 1.0, 4.0), DVec3::new(u, v - 0.15, -1.6).normalize());
        let (n, a, shown) = match nearest(origin, direction, &spheres) {
            None => (DVec3::ZERO, DVec3::ZERO, DVec3::new(0.4, 0.6, 1.0 + 0.3 * v)),
            Some((t, n, a)) => {
                let place = origin + direction * t + n * 1e-3;
                let lit = if nearest(place, light, &spheres).is_none() { n.dot(light).max(0.0) } else { 0.0 };
                (n, a, a * (0.15 + 1.2 * lit))
            }
        };
        let i = ((y * width + x) * 4) as u64 + 77_777 * (scene + 1);
        let firefly = if number(i + 3) < 0.002 { 20.0 } else { 1.0 };
        for k in 0..3 {
            color.push((shown[k] * -number(i + k as u64).ln() * firefly) as f32);
            albedo.push(a[k] as f32);
            normal.push(n[k] as f32);
            clean.push(shown[k] as f32);
        }
    }
    Picture { size: [height, width], color, albedo, normal, clean }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn reference(name: &str) -> Vec<f32> {
    let mut file = SafetensorsFile::open(root().join("tests/data/denoise.safetensors")).unwrap();
    file.read(name).unwrap().to_f32()
}

/// A rig with one of the shipped networks.
fn rig(backend: Backend, network: &str) -> (Rig, Denoiser) {
    let mut rig = Rig::new(backend);
    let model = rig.app.world_mut().spawn(TensorModel).id();
    let mut file = SafetensorsFile::open(root().join(format!("assets/models/denoise_{network}.safetensors"))).unwrap();
    for name in file.names() {
        let tensor = Tensor::from(file.read(&name).unwrap());
        rig.app.world_mut().spawn((Name::new(name), tensor, TensorOf(model)));
    }
    let id = rig.app.world_mut().register_system(move |models: TensorModels| Denoiser::find(&models.weights(model)));
    let denoiser = rig.app.world_mut().run_system(id).unwrap().unwrap();
    (rig, denoiser)
}

fn denoise(rig: &mut Rig, denoiser: Denoiser, picture: &Picture, settings: DenoiseSettings) -> Vec<f32> {
    let [height, width] = picture.size;
    let images = [&picture.color, &picture.albedo, &picture.normal];
    let [color, albedo, normal] =
        images.map(|values| rig.spawn(Tensor::from_slice(values, [height, width, 3]).unwrap()));
    let out = rig.compute(move |ops| ops.denoise(&denoiser, color, albedo, normal, settings)).unwrap();
    assert_eq!(out.shape()[..], [height, width, 3]);
    out.to_f32()
}

/// Every fourth pixel of every fourth row.
fn sampled(values: &[f32], [height, width]: [usize; 2]) -> Vec<f32> {
    let places = (0..height).step_by(4).flat_map(|y| (0..width).step_by(4).map(move |x| (y * width + x) * 3));
    places.flat_map(|at| values[at..at + 3].to_vec()).collect()
}

/// Peak signal-to-noise ratio of tone-mapped colours, in dB.
fn psnr(actual: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let tone = |x: f32| f64::from(x.max(0.0) / (1.0 + x.max(0.0)));
    let errors = actual.iter().zip(expected).map(|(&a, &e)| (tone(a) - tone(e)).powi(2));
    -10.0 * (errors.sum::<f64>() / actual.len() as f64).max(1e-20).log10()
}

#[track_caller]
fn assert_agrees(actual: &[f32], expected: &[f32], what: &str) {
    let found = psnr(actual, expected);
    assert!(found >= 45.0, "{what}: {found:.1} dB between ours and the original's");
}

fn check_scene(backend: Backend, network: &str, scene: u64, [height, width]: [usize; 2]) {
    let (mut rig, denoiser) = rig(backend, network);
    let picture = render(scene, height, width);
    let out = denoise(&mut rig, denoiser, &picture, DenoiseSettings::default());
    let what = format!("{network} on the {backend}, scene {scene}");
    assert_agrees(&sampled(&out, picture.size), &reference(&format!("{network}.{scene}")), &what);
    let (before, after) = (psnr(&picture.color, &picture.clean), psnr(&out, &picture.clean));
    assert!(after >= before + 6.0, "{what}: {before:.1} dB before, {after:.1} dB after");
}

#[test]
fn the_cpu_agrees_with_the_original() {
    check_scene(Backend::Cpu, "small", 0, [256, 256]);
    check_scene(Backend::Cpu, "small", 1, [256, 256]);
}

#[test]
fn the_gpu_agrees_with_the_original() {
    check_scene(Backend::Gpu, "small", 2, [256, 256]);
}

#[test]
#[ignore = "minutes on a software adapter"]
fn all_scenes_agree_with_the_original_on_both_backends() {
    for backend in BACKENDS {
        for scene in 0..3 {
            check_scene(backend, "small", scene, [256, 256]);
        }
        check_scene(backend, "small", 3, [360, 640]);
        check_scene(backend, "base", 0, [256, 256]);
        check_scene(backend, "base", 3, [360, 640]);
    }
}

#[test]
fn odd_sizes_and_bad_numbers_give_what_the_original_gives() {
    for backend in BACKENDS {
        let (mut rig, denoiser) = rig(backend, "small");
        for (name, height, width) in [("1x1", 1, 1), ("17x33", 17, 33), ("1x1920", 1, 1920)] {
            let out = denoise(&mut rig, denoiser, &render(1, height, width), DenoiseSettings::default());
            assert_agrees(&out, &reference(name), &format!("{name} on the {backend}"));
        }
        let mut bad = render(1, 48, 48);
        let at = |row: usize, column: usize| (row * 48 + column) * 3;
        bad.color[at(5, 6)..][..3].fill(f32::NAN);
        bad.color[at(30, 30) + 1] = f32::NEG_INFINITY;
        (40..43).for_each(|row| bad.color[at(row, 9)..][..9].fill(-3.0));
        for (place, [a, n]) in [(3, [f32::NAN; 2]), (7, [9.0; 2]), (9, [f32::INFINITY, f32::NEG_INFINITY])] {
            bad.albedo[at(place, place)..][..3].fill(a);
            bad.normal[at(place, place)..][..3].fill(n);
        }
        let out = denoise(&mut rig, denoiser, &bad, DenoiseSettings::default());
        assert_agrees(&out, &reference("bad"), &format!("bad numbers on the {backend}"));
        let mut infinite = render(1, 48, 48);
        infinite.color[at(5, 6) + 1] = f32::INFINITY;
        let out = denoise(&mut rig, denoiser, &infinite, DenoiseSettings::default());
        assert_agrees(&out, &reference("inf"), &format!("an infinity on the {backend}"));
        let mut black = render(1, 32, 32);
        black.color.fill(0.0);
        let out = denoise(&mut rig, denoiser, &black, DenoiseSettings::default());
        assert_agrees(&out, &reference("black"), &format!("black on the {backend}"));
        assert!(rig.faults().is_empty(), "{:?}", rig.faults());
    }
}

#[test]
fn tiles_do_not_change_the_result() {
    let (mut rig, denoiser) = rig(Backend::Cpu, "small");
    let picture = render(2, 70, 150);
    let whole = denoise(&mut rig, denoiser, &picture, DenoiseSettings::default());
    for tile in [60, 100] {
        let tiled = denoise(&mut rig, denoiser, &picture, DenoiseSettings { tile: Some(tile), ..default() });
        let found = psnr(&tiled, &whole);
        assert!(found > 80.0, "tiles of {tile}: {found:.1} dB");
    }
    // A fixed exposure near the measured one hardly matters.
    let fixed = denoise(&mut rig, denoiser, &picture, DenoiseSettings { exposure: Some(0.5), ..default() });
    assert!(psnr(&fixed, &whole) > 25.0);
}

#[test]
fn wrong_arguments_are_refused() {
    let (mut rig, denoiser) = rig(Backend::Cpu, "small");
    let image = rig.spawn(Tensor::zeros([8, 8, 3], DType::F32).unwrap());
    let other = rig.spawn(Tensor::zeros([8, 9, 3], DType::F32).unwrap());
    let flat = rig.spawn(Tensor::zeros([8, 8], DType::F32).unwrap());
    let bytes = rig.spawn(Tensor::zeros([8, 8, 3], DType::U8).unwrap());
    let empty = rig.spawn(Tensor::zeros([0, 8, 3], DType::F32).unwrap());
    let mut refused = |color, albedo, settings: DenoiseSettings, part: &str| {
        let error =
            rig.record(move |ops| ops.denoise(&denoiser, color, albedo, image, settings).map(drop)).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
        assert!(matches!(error, OpError::Argument { op: "denoise", .. }), "{error:?}");
    };
    let settings = DenoiseSettings::default();
    refused(image, other, settings, "another size");
    refused(flat, image, settings, "color must be [height, width, 3]");
    refused(image, bytes, settings, "albedo must have pixels of floats");
    refused(empty, image, settings, "color must have pixels");
    refused(image, image, DenoiseSettings { tile: Some(0), ..settings }, "tiles of 0");
    for exposure in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        refused(image, image, DenoiseSettings { exposure: Some(exposure), ..settings }, "exposure");
    }
}

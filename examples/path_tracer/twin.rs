//! The CPU version of `path_tracer.wgsl`, in Rust.

use core::f32::consts::PI;

use bevy::math::{UVec2, Vec2, Vec3};
use bevy::prelude::Result;
use bevy_tensor_compute::kernels::CpuKernelCall;

const EPSILON: f32 = 0.001;
const BOUNCES: u32 = 7;
const ROOM_MIN: Vec3 = Vec3::new(-4.0, 0.0, -3.2);
const ROOM_MAX: Vec3 = Vec3::new(4.0, 5.0, 9.0);
const LIGHT_HALF: f32 = 1.1;
const LIGHT: Vec3 = Vec3::new(19.0, 15.0, 10.5);

struct Hit {
    distance: f32,
    normal: Vec3,
    surface: u32,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Matte,
    Plastic,
    Metal,
    Glass,
    Glow,
}

struct Surface {
    color: Vec3,
    kind: Kind,
    roughness: f32,
}

#[derive(Default)]
struct Sample {
    color: Vec3,
    albedo: Vec3,
    normal: Vec3,
}

struct Random(u32);

impl Random {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
        let word = ((self.0 >> ((self.0 >> 28) + 4)) ^ self.0).wrapping_mul(277_803_737);
        (((word >> 22) ^ word) >> 8) as f32 / 16_777_216.0
    }

    fn direction(&mut self) -> Vec3 {
        let z = self.next() * 2.0 - 1.0;
        let angle = self.next() * 2.0 * PI;
        let r = (1.0 - z * z).max(0.0).sqrt();
        Vec3::new(r * angle.cos(), r * angle.sin(), z)
    }
}

impl Hit {
    fn sphere(&mut self, origin: Vec3, direction: Vec3, centre: Vec3, radius: f32, surface: u32) {
        let offset = origin - centre;
        let b = offset.dot(direction);
        let d = b * b - offset.dot(offset) + radius * radius;
        if d > 0.0 {
            let root = d.sqrt();
            let t = if -b - root < EPSILON { -b + root } else { -b - root };
            if t > EPSILON && t < self.distance {
                *self = Hit { distance: t, normal: (offset + direction * t) / radius, surface };
            }
        }
    }

    fn cuboid(&mut self, origin: Vec3, direction: Vec3, [low, high]: [Vec3; 2], surface: u32) {
        let (a, b) = ((low - origin) / direction, (high - origin) / direction);
        let (near, far) = (a.min(b), a.max(b));
        let t = near.max_element();
        if t > EPSILON && t < far.min_element() && t < self.distance {
            let axis = Vec3::select(near.cmpge(Vec3::splat(t)), Vec3::ONE, Vec3::ZERO);
            *self = Hit { distance: t, normal: (-direction.signum() * axis).normalize(), surface };
        }
    }
}

fn trace(origin: Vec3, direction: Vec3) -> Hit {
    let ends = (Vec3::select(direction.cmpgt(Vec3::ZERO), ROOM_MAX, ROOM_MIN) - origin) / direction;
    let t = ends.min_element();
    let axis = Vec3::select(ends.cmple(Vec3::splat(t)), Vec3::ONE, Vec3::ZERO);
    let surface = if axis.x > 0.0 {
        if direction.x > 0.0 { 3 } else { 2 }
    } else if axis.z > 0.0 {
        if direction.z > 0.0 { 13 } else { 1 }
    } else if direction.y > 0.0 {
        let place = (origin + direction * t).abs();
        if place.x.max(place.z) < LIGHT_HALF { 5 } else { 1 }
    } else {
        0
    };
    let mut hit = Hit { distance: t, normal: (-direction.signum() * axis).normalize(), surface };
    hit.sphere(origin, direction, Vec3::new(1.35, 1.0, 1.2), 1.0, 6);
    hit.sphere(origin, direction, Vec3::new(-1.7, 1.15, -0.7), 1.15, 7);
    hit.sphere(origin, direction, Vec3::new(-0.5, 0.45, 2.1), 0.45, 9);
    hit.sphere(origin, direction, Vec3::new(-1.75, 0.35, 2.2), 0.35, 8);
    hit.sphere(origin, direction, Vec3::new(3.0, 0.55, 0.1), 0.55, 10);
    hit.cuboid(origin, direction, [Vec3::new(0.5, 0.0, -2.6), Vec3::new(1.9, 2.7, -1.3)], 11);
    hit.cuboid(origin, direction, [Vec3::new(-3.5, 0.0, 0.5), Vec3::new(-2.6, 0.9, 1.4)], 12);
    hit
}

fn surface_of(id: u32, place: Vec3) -> Surface {
    let surface = |r, g, b, kind, roughness| Surface { color: Vec3::new(r, g, b), kind, roughness };
    match id {
        0 if (place.x.floor() as i32 + place.z.floor() as i32) % 2 == 0 => {
            surface(0.72, 0.70, 0.66, Kind::Plastic, 0.18)
        }
        0 => surface(0.20, 0.21, 0.24, Kind::Plastic, 0.18),
        2 => surface(0.66, 0.10, 0.07, Kind::Matte, 0.0),
        3 => surface(0.09, 0.36, 0.42, Kind::Matte, 0.0),
        5 => surface(1.0, 1.0, 1.0, Kind::Glow, 0.0),
        6 => surface(1.0, 1.0, 1.0, Kind::Glass, 0.0),
        7 => surface(1.0, 0.73, 0.35, Kind::Metal, 0.16),
        8 => surface(0.95, 0.95, 0.95, Kind::Metal, 0.0),
        9 => surface(0.75, 0.05, 0.12, Kind::Plastic, 0.04),
        10 => surface(0.08, 0.16, 0.62, Kind::Plastic, 0.08),
        12 => surface(0.85, 0.38, 0.06, Kind::Plastic, 0.12),
        13 => surface(0.22, 0.22, 0.22, Kind::Matte, 0.0),
        _ => surface(0.73, 0.73, 0.73, Kind::Matte, 0.0),
    }
}

fn direct_light(place: Vec3, normal: Vec3, random: &mut Random) -> Vec3 {
    let x = (random.next() * 2.0 - 1.0) * LIGHT_HALF;
    let z = (random.next() * 2.0 - 1.0) * LIGHT_HALF;
    let offset = Vec3::new(x, ROOM_MAX.y, z) - place;
    let distance = offset.length();
    let direction = offset / distance;
    let cosine = normal.dot(direction);
    if cosine <= 0.0 || direction.y <= 0.0 || trace(place, direction).surface != 5 {
        return Vec3::ZERO;
    }
    let area = 4.0 * LIGHT_HALF * LIGHT_HALF;
    LIGHT * (cosine * direction.y * area / (PI * distance * distance))
}

fn fresnel(cosine: f32, normal_share: f32) -> f32 {
    normal_share + (1.0 - normal_share) * (1.0 - cosine.clamp(0.0, 1.0)).powi(5)
}

fn path(start: Vec3, first_direction: Vec3, random: &mut Random) -> Sample {
    let (mut origin, mut direction, mut share) = (start, first_direction, Vec3::ONE);
    let (mut result, mut sees_lamp) = (Sample::default(), true);
    for bounce in 0..BOUNCES {
        let hit = trace(origin, direction);
        let place = origin + direction * hit.distance;
        let surface = surface_of(hit.surface, place);
        let facing = if hit.normal.dot(direction) > 0.0 { -hit.normal } else { hit.normal };
        if bounce == 0 {
            (result.albedo, result.normal) = (surface.color, facing);
        }
        if surface.kind == Kind::Glow {
            if sees_lamp {
                result.color += share * LIGHT;
            }
            break;
        }
        let cosine = -direction.dot(facing);
        let choice = random.next();
        let reflected = direction - 2.0 * direction.dot(facing) * facing;
        if surface.kind == Kind::Glass {
            let ratio = if hit.normal.dot(direction) < 0.0 { 1.0 / 1.5 } else { 1.5 };
            let under = 1.0 - ratio * ratio * (1.0 - cosine * cosine);
            let mirrored = under < 0.0 || choice < fresnel(cosine, 0.04);
            let bent = ratio * direction + (ratio * cosine - under.max(0.0).sqrt()) * facing;
            direction = if mirrored { reflected } else { bent }.normalize();
            origin = place + direction * EPSILON;
            sees_lamp = true;
        } else if surface.kind == Kind::Metal || (surface.kind == Kind::Plastic && choice < fresnel(cosine, 0.04)) {
            direction = (reflected + random.direction() * surface.roughness).normalize();
            if direction.dot(facing) <= 0.0 {
                break;
            }
            if surface.kind == Kind::Metal {
                share *= surface.color;
            }
            origin = place + facing * EPSILON;
            sees_lamp = true;
        } else {
            origin = place + facing * EPSILON;
            share *= surface.color;
            result.color += share * direct_light(origin, facing, random);
            direction = (facing + random.direction() * 0.999).normalize();
            sees_lamp = false;
        }
        if bounce > 2 {
            let survival = share.max_element().clamp(0.05, 1.0);
            if random.next() > survival {
                break;
            }
            share /= survival;
        }
    }
    result
}

/// CPU version of `main` in `path_tracer.wgsl`.
pub fn trace_pixels(call: &mut CpuKernelCall) -> Result {
    let [color, albedo, normal] = [call.input::<f32>(0)?, call.input::<f32>(1)?, call.input::<f32>(2)?];
    let [eye, right, up, forward] = [
        call.param::<Vec3>("eye")?,
        call.param::<Vec3>("right")?,
        call.param::<Vec3>("up")?,
        call.param::<Vec3>("forward")?,
    ];
    let (size, keep) = (call.param::<UVec2>("size")?, call.param::<f32>("keep")?);
    let (frame, samples) = (call.param::<u32>("frame")?, call.param::<u32>("samples")?);
    let render = |pixel: usize, sums: [&mut [f32]; 3]| {
        let (x, y) = (pixel as u32 % size.x, pixel as u32 / size.x);
        let mut random =
            Random((pixel as u32).wrapping_mul(9781).wrapping_add(frame.wrapping_mul(6271)).wrapping_add(12345));
        random.next();
        let mut sum = Sample::default();
        for _ in 0..samples {
            let at = Vec2::new(x as f32 + random.next(), y as f32 + random.next());
            let plane = (at * 2.0 - size.as_vec2()) / size.y as f32;
            let direction = (forward + right * plane.x - up * plane.y).normalize();
            let one = path(eye, direction, &mut random);
            sum.color += one.color.min(Vec3::splat(30.0));
            sum.albedo += one.albedo;
            sum.normal += one.normal;
        }
        let before = [color, albedo, normal];
        for ((out, before), sum) in sums.into_iter().zip(before).zip([sum.color, sum.albedo, sum.normal]) {
            for k in 0..3 {
                out[k] = before[pixel * 3 + k] * keep + sum[k];
            }
        }
    };
    let outputs = call.outputs::<f32, 3>()?;
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    // Bands of rows, one per thread.
    let rows = (size.y as usize).div_ceil(threads).max(1);
    let band = rows * size.x as usize;
    let [colors, albedos, normals] = outputs.map(|output| output.chunks_mut(band.max(1) * 3));
    std::thread::scope(|scope| {
        for (first, ((colors, albedos), normals)) in colors.zip(albedos).zip(normals).enumerate() {
            let render = &render;
            scope.spawn(move || {
                let pixels = colors.chunks_mut(3).zip(albedos.chunks_mut(3)).zip(normals.chunks_mut(3));
                for (i, ((color, albedo), normal)) in pixels.enumerate() {
                    render(first * band + i, [color, albedo, normal]);
                }
            });
        }
    });
    Ok(())
}

//! The CPU implementations of the kernels, in Rust.

use bevy::math::{UVec2, Vec2, Vec3};
use bevy::prelude::Result;
use bevy_tensor_compute::kernels::CpuKernelCall;

/// CPU version of `step` in `gray_scott.wgsl`.
pub fn step(call: &mut CpuKernelCall) -> Result {
    let (u, v) = (call.input::<f32>(0)?, call.input::<f32>(1)?);
    let (feed, kill, size) = (call.param::<f32>("feed")?, call.param::<f32>("kill")?, call.param::<UVec2>("size")?);
    let (columns, rows) = (size.x as usize, size.y as usize);
    let both = |i: usize| Vec2::new(u[i], v[i]);
    let [next_u, next_v] = call.outputs::<f32, 2>()?;
    for y in 0..rows {
        let [up, down] = [(y + rows - 1) % rows * columns, (y + 1) % rows * columns];
        let row = y * columns;
        for x in 0..columns {
            let [left, right] = [(x + columns - 1) % columns, (x + 1) % columns];
            let here = both(row + x);
            let sides = both(row + left) + both(row + right) + both(up + x) + both(down + x);
            let corners = both(up + left) + both(up + right) + both(down + left) + both(down + right);
            let flow = Vec2::new(1.0, 0.5) * (0.2 * sides + 0.05 * corners - here);
            let eaten = here.x * here.y * here.y;
            next_u[row + x] = here.x + flow.x - eaten + feed * (1.0 - here.x);
            next_v[row + x] = here.y + flow.y + eaten - (feed + kill) * here.y;
        }
    }
    Ok(())
}

/// CPU version of `paint` in `gray_scott.wgsl`.
pub fn paint(call: &mut CpuKernelCall) -> Result {
    let (u, v) = (call.input::<f32>(0)?, call.input::<f32>(1)?);
    let size = call.param::<UVec2>("size")?;
    let (columns, rows) = (size.x as usize, size.y as usize);
    let night = Vec3::new(0.02, 0.03, 0.09);
    let sea = Vec3::new(0.01, 0.34, 0.47);
    let sand = Vec3::new(0.98, 0.62, 0.32);
    let foam = Vec3::new(1.0, 0.95, 0.82);
    let smooth = |low: f32, high: f32, x: f32| {
        let t = ((x - low) / (high - low)).clamp(0.0, 1.0);
        t * t * (3.0 - 2.0 * t)
    };
    for (i, pixel) in call.output::<u32>(0)?.iter_mut().enumerate() {
        let (x, y) = (i % columns, i / columns);
        let height = v[i];
        let before = v[(y + rows - 1) % rows * columns + (x + columns - 1) % columns];
        let light = 1.0 + 4.0 * (height - before);
        let colour = night.lerp(sea, smooth(0.15, 0.7, 1.0 - u[i]));
        let colour = colour.lerp(sand, smooth(0.16, 0.31, height)).lerp(foam, smooth(0.28, 0.38, height));
        let bytes = (colour * light).clamp(Vec3::ZERO, Vec3::ONE) * 255.0;
        let [r, g, b] = bytes.to_array().map(|byte| (byte + 0.5) as u32);
        *pixel = r | g << 8 | b << 16 | 255 << 24;
    }
    Ok(())
}

// The Gray-Scott reaction of two substances on a plane that wraps around: u feeds v, v consumes u and decays. Edit this
// file while the example runs. The next frame runs the new code. If it is invalid, the error is shown and the previous
// version stays in use.

#import tensor::indexing

struct Params {
    // Feed rate of u and decay rate of v.
    feed: f32,
    kill: f32,
    // Columns and rows of the plane.
    size: vec2<u32>,
}

// Diffusion rates of u and v.
const SPREAD = vec2<f32>(1.0, 0.5);
// Colours by remaining u, and by the amount of v.
const NIGHT = vec3<f32>(0.02, 0.03, 0.09);
const SEA = vec3<f32>(0.01, 0.34, 0.47);
const SAND = vec3<f32>(0.98, 0.62, 0.32);
const FOAM = vec3<f32>(1.0, 0.95, 0.82);

var<uniform> params: Params;
var<storage, read> u: array<f32>;
var<storage, read> v: array<f32>;
var<storage, read_write> next_u: array<f32>;
var<storage, read_write> next_v: array<f32>;
var<storage, read_write> pixels: array<u32>;

// The index of the element at a column and row, which wrap around.
fn cell(x: i32, y: i32) -> u32 {
    return index_2d(vec2<u32>(wrap_index(y, params.size.y), wrap_index(x, params.size.x)), params.size.x);
}

fn both(x: i32, y: i32) -> vec2<f32> {
    let i = cell(x, y);
    return vec2<f32>(u[i], v[i]);
}

// One time step, one thread per element: columns along x, rows along y.
@compute @workgroup_size(8, 8)
fn step(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= params.size.x || id.y >= params.size.y) {
        return;
    }
    let x = i32(id.x);
    let y = i32(id.y);
    let here = both(x, y);
    let sides = both(x - 1, y) + both(x + 1, y) + both(x, y - 1) + both(x, y + 1);
    let corners = both(x - 1, y - 1) + both(x + 1, y - 1) + both(x - 1, y + 1) + both(x + 1, y + 1);
    let flow = SPREAD * (0.2 * sides + 0.05 * corners - here);
    let eaten = here.x * here.y * here.y;
    let i = cell(x, y);
    next_u[i] = here.x + flow.x - eaten + params.feed * (1.0 - here.x);
    next_v[i] = here.y + flow.y + eaten - (params.feed + params.kill) * here.y;
}

// The plane as RGBA pixels, lit from the upper left as if v were height.
@compute @workgroup_size(8, 8)
fn paint(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= params.size.x || id.y >= params.size.y) {
        return;
    }
    let x = i32(id.x);
    let y = i32(id.y);
    let here = both(x, y);
    let height = here.y;
    let light = 1.0 + 4.0 * (height - both(x - 1, y - 1).y);
    var colour = mix(NIGHT, SEA, smoothstep(0.15, 0.7, 1.0 - here.x));
    colour = mix(colour, SAND, smoothstep(0.16, 0.31, height));
    colour = mix(colour, FOAM, smoothstep(0.28, 0.38, height));
    pixels[cell(x, y)] = pack4x8unorm(vec4<f32>(clamp(colour * light, vec3<f32>(0.0), vec3<f32>(1.0)), 1.0));
}

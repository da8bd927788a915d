// A path tracer: one thread per pixel adds its samples to the sums of colour, albedo and normal. `twin.rs` has the same
// code in Rust.

struct Params {
    eye: vec3<f32>,
    // Number of the frame, for random numbers.
    frame: u32,
    right: vec3<f32>,
    // Samples per pixel.
    samples: u32,
    up: vec3<f32>,
    // 0 starts the sums anew, 1 continues them.
    keep: f32,
    forward: vec3<f32>,
    // Columns and rows.
    size: vec2<u32>,
}

const PI = 3.14159265;
const EPSILON = 0.001;
const BOUNCES = 7u;
// Corners of the room. The light is a square in its ceiling.
const ROOM_MIN = vec3<f32>(-4.0, 0.0, -3.2);
const ROOM_MAX = vec3<f32>(4.0, 5.0, 9.0);
const LIGHT_HALF = 1.1;
const LIGHT = vec3<f32>(19.0, 15.0, 10.5);
// Kinds of surfaces.
const MATTE = 0u;
const PLASTIC = 1u;
const METAL = 2u;
const GLASS = 3u;
const GLOW = 4u;

// What a path starts with: sums of earlier samples, `[rows, columns, 3]`.
var<storage, read> color: array<f32>;
var<storage, read> albedo: array<f32>;
var<storage, read> normal: array<f32>;
var<storage, read_write> next_color: array<f32>;
var<storage, read_write> next_albedo: array<f32>;
var<storage, read_write> next_normal: array<f32>;
var<uniform> params: Params;

struct Hit {
    distance: f32,
    normal: vec3<f32>,
    surface: u32,
}

struct Surface {
    color: vec3<f32>,
    kind: u32,
    roughness: f32,
}

struct Sample {
    color: vec3<f32>,
    albedo: vec3<f32>,
    normal: vec3<f32>,
}

// A uniform number in 0..1, by a PCG generator.
fn random(state: ptr<function, u32>) -> f32 {
    *state = *state * 747796405u + 2891336453u;
    let word = ((*state >> ((*state >> 28u) + 4u)) ^ *state) * 277803737u;
    return f32(((word >> 22u) ^ word) >> 8u) / 16777216.0;
}

// A uniform direction.
fn random_direction(state: ptr<function, u32>) -> vec3<f32> {
    let z = random(state) * 2.0 - 1.0;
    let angle = random(state) * 2.0 * PI;
    let r = sqrt(max(1.0 - z * z, 0.0));
    return vec3<f32>(r * cos(angle), r * sin(angle), z);
}

fn hit_sphere(hit: ptr<function, Hit>, origin: vec3<f32>, direction: vec3<f32>, centre: vec3<f32>, radius: f32, surface: u32) {
    let offset = origin - centre;
    let b = dot(offset, direction);
    let d = b * b - dot(offset, offset) + radius * radius;
    if d > 0.0 {
        let root = sqrt(d);
        var t = -b - root;
        if t < EPSILON {
            t = -b + root;
        }
        if t > EPSILON && t < (*hit).distance {
            *hit = Hit(t, (offset + direction * t) / radius, surface);
        }
    }
}

fn hit_box(hit: ptr<function, Hit>, origin: vec3<f32>, direction: vec3<f32>, low: vec3<f32>, high: vec3<f32>, surface: u32) {
    let a = (low - origin) / direction;
    let b = (high - origin) / direction;
    let near = min(a, b);
    let far = max(a, b);
    let t = max(max(near.x, near.y), near.z);
    if t > EPSILON && t < min(min(far.x, far.y), far.z) && t < (*hit).distance {
        let axis = step(vec3<f32>(t), near);
        *hit = Hit(t, normalize(-sign(direction) * axis), surface);
    }
}

// The nearest surface. Rays start inside the room, so there always is one.
fn trace(origin: vec3<f32>, direction: vec3<f32>) -> Hit {
    let ends = (select(ROOM_MIN, ROOM_MAX, direction > vec3<f32>(0.0)) - origin) / direction;
    let t = min(min(ends.x, ends.y), ends.z);
    let axis = step(ends, vec3<f32>(t));
    var surface = 0u;
    if axis.x > 0.0 {
        surface = select(2u, 3u, direction.x > 0.0);
    } else if axis.z > 0.0 {
        surface = select(1u, 13u, direction.z > 0.0);
    } else if direction.y > 0.0 {
        let place = abs(origin + direction * t);
        surface = select(1u, 5u, max(place.x, place.z) < LIGHT_HALF);
    }
    var hit = Hit(t, normalize(-sign(direction) * axis), surface);
    hit_sphere(&hit, origin, direction, vec3<f32>(1.35, 1.0, 1.2), 1.0, 6u);
    hit_sphere(&hit, origin, direction, vec3<f32>(-1.7, 1.15, -0.7), 1.15, 7u);
    hit_sphere(&hit, origin, direction, vec3<f32>(-0.5, 0.45, 2.1), 0.45, 9u);
    hit_sphere(&hit, origin, direction, vec3<f32>(-1.75, 0.35, 2.2), 0.35, 8u);
    hit_sphere(&hit, origin, direction, vec3<f32>(3.0, 0.55, 0.1), 0.55, 10u);
    hit_box(&hit, origin, direction, vec3<f32>(0.5, 0.0, -2.6), vec3<f32>(1.9, 2.7, -1.3), 11u);
    hit_box(&hit, origin, direction, vec3<f32>(-3.5, 0.0, 0.5), vec3<f32>(-2.6, 0.9, 1.4), 12u);
    return hit;
}

fn surface_of(id: u32, place: vec3<f32>) -> Surface {
    switch id {
        case 0u: {
            let light = (i32(floor(place.x)) + i32(floor(place.z))) % 2 == 0;
            return Surface(select(vec3<f32>(0.20, 0.21, 0.24), vec3<f32>(0.72, 0.70, 0.66), light), PLASTIC, 0.18);
        }
        case 2u: { return Surface(vec3<f32>(0.66, 0.10, 0.07), MATTE, 0.0); }
        case 3u: { return Surface(vec3<f32>(0.09, 0.36, 0.42), MATTE, 0.0); }
        case 5u: { return Surface(vec3<f32>(1.0), GLOW, 0.0); }
        case 6u: { return Surface(vec3<f32>(1.0), GLASS, 0.0); }
        case 7u: { return Surface(vec3<f32>(1.0, 0.73, 0.35), METAL, 0.16); }
        case 8u: { return Surface(vec3<f32>(0.95), METAL, 0.0); }
        case 9u: { return Surface(vec3<f32>(0.75, 0.05, 0.12), PLASTIC, 0.04); }
        case 10u: { return Surface(vec3<f32>(0.08, 0.16, 0.62), PLASTIC, 0.08); }
        case 12u: { return Surface(vec3<f32>(0.85, 0.38, 0.06), PLASTIC, 0.12); }
        case 13u: { return Surface(vec3<f32>(0.22), MATTE, 0.0); }
        default: { return Surface(vec3<f32>(0.73), MATTE, 0.0); }
    }
}

// The light that arrives directly from a random place of the lamp, for a surface of albedo 1.
fn direct_light(place: vec3<f32>, normal: vec3<f32>, state: ptr<function, u32>) -> vec3<f32> {
    let at = vec3<f32>((random(state) * 2.0 - 1.0) * LIGHT_HALF, ROOM_MAX.y, (random(state) * 2.0 - 1.0) * LIGHT_HALF);
    let offset = at - place;
    let distance = length(offset);
    let direction = offset / distance;
    let cosine = dot(normal, direction);
    if cosine <= 0.0 || direction.y <= 0.0 || trace(place, direction).surface != 5u {
        return vec3<f32>(0.0);
    }
    let area = 4.0 * LIGHT_HALF * LIGHT_HALF;
    return LIGHT * (cosine * direction.y * area / (PI * distance * distance));
}

// The share of light that a smooth surface reflects, by Schlick.
fn fresnel(cosine: f32, normal_share: f32) -> f32 {
    let x = 1.0 - clamp(cosine, 0.0, 1.0);
    return normal_share + (1.0 - normal_share) * x * x * x * x * x;
}

fn path(start: vec3<f32>, first_direction: vec3<f32>, state: ptr<function, u32>) -> Sample {
    var origin = start;
    var direction = first_direction;
    var share = vec3<f32>(1.0);
    var result = Sample(vec3<f32>(0.0), vec3<f32>(0.0), vec3<f32>(0.0));
    // Whether the lamp was not sampled at the last surface.
    var sees_lamp = true;
    for (var bounce = 0u; bounce < BOUNCES; bounce++) {
        let hit = trace(origin, direction);
        let place = origin + direction * hit.distance;
        let surface = surface_of(hit.surface, place);
        let facing = select(hit.normal, -hit.normal, dot(hit.normal, direction) > 0.0);
        if bounce == 0u {
            result.albedo = surface.color;
            result.normal = facing;
        }
        if surface.kind == GLOW {
            if sees_lamp {
                result.color += share * LIGHT;
            }
            break;
        }
        let cosine = -dot(direction, facing);
        let choice = random(state);
        if surface.kind == GLASS {
            let enters = dot(hit.normal, direction) < 0.0;
            let bent = refract(direction, facing, select(1.5, 1.0 / 1.5, enters));
            let mirrored = dot(bent, bent) < 0.5 || choice < fresnel(cosine, 0.04);
            direction = normalize(select(bent, reflect(direction, facing), mirrored));
            origin = place + direction * EPSILON;
            sees_lamp = true;
        } else if surface.kind == METAL || (surface.kind == PLASTIC && choice < fresnel(cosine, 0.04)) {
            let around = random_direction(state) * surface.roughness;
            direction = normalize(reflect(direction, facing) + around);
            if dot(direction, facing) <= 0.0 {
                break;
            }
            if surface.kind == METAL {
                share *= surface.color;
            }
            origin = place + facing * EPSILON;
            sees_lamp = true;
        } else {
            origin = place + facing * EPSILON;
            share *= surface.color;
            result.color += share * direct_light(origin, facing, state);
            direction = normalize(facing + random_direction(state) * 0.999);
            sees_lamp = false;
        }
        if bounce > 2u {
            let survival = clamp(max(max(share.x, share.y), share.z), 0.05, 1.0);
            if random(state) > survival {
                break;
            }
            share /= survival;
        }
    }
    return result;
}

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= params.size.x || id.y >= params.size.y) {
        return;
    }
    let pixel = id.y * params.size.x + id.x;
    var state = pixel * 9781u + params.frame * 6271u + 12345u;
    random(&state);
    var sum = Sample(vec3<f32>(0.0), vec3<f32>(0.0), vec3<f32>(0.0));
    for (var sample = 0u; sample < params.samples; sample++) {
        let at = vec2<f32>(f32(id.x) + random(&state), f32(id.y) + random(&state));
        let size = vec2<f32>(params.size);
        let plane = (at * 2.0 - size) / size.y;
        let direction = normalize(params.forward + params.right * plane.x - params.up * plane.y);
        let one = path(params.eye, direction, &state);
        // Rare bright paths would need many samples to average out.
        sum.color += min(one.color, vec3<f32>(30.0));
        sum.albedo += one.albedo;
        sum.normal += one.normal;
    }
    for (var k = 0u; k < 3u; k++) {
        let i = pixel * 3u + k;
        next_color[i] = color[i] * params.keep + sum.color[k];
        next_albedo[i] = albedo[i] * params.keep + sum.albedo[k];
        next_normal[i] = normal[i] * params.keep + sum.normal[k];
    }
}

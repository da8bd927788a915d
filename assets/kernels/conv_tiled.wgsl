// Convolution as a matrix product: output channels by positions of the batch, summed over the elements of a window. A workgroup makes a tile of
// 64 x 64 from 16-deep tiles in workgroup memory, 4 x 4 elements a thread; the input's tile is read in place, so no matrix of windows is made.

const TILE: u32 = 64u;
const DEPTH: u32 = 16u;
// One vec4 more than the tile, against bank conflicts of the transposed store.
const PITCH: u32 = 68u;

var<workgroup> tile_weight: array<f32, 1088>;
var<workgroup> tile_x: array<f32, 1088>;
/// For each step of the depth: how far its element lies from a window's corner, in memory and along the three axes.
var<workgroup> offsets: array<vec4<u32>, 16>;

fn offset_of(k: u32) -> vec4<u32> {
    let taps = params.size_d * params.size_h * params.size_w;
    let tap = k % taps;
    let w = tap % params.size_w * params.dilation_w;
    let h = tap / params.size_w % params.size_h * params.dilation_h;
    let d = tap / params.size_w / params.size_h * params.dilation_d;
    let channel = k / taps * params.input_d;
    return vec4(((channel + d) * params.input_h + h) * params.input_w + w, d, h, w);
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(num_workgroups) nwg: vec3<u32>, @builtin(local_invocation_index) lid: u32) {
    let work = workgroup_index(wid, nwg);
    if work >= params.work {
        return;
    }
    let first_place = work % params.tiles * TILE;
    let group = work / params.tiles / params.blocks;
    let top = work / params.tiles % params.blocks * TILE;
    let size = params.group_in * params.size_d * params.size_h * params.size_w;

    // What this thread fills: one position at every fourth step, and one step of every sixteenth channel.
    let own_place = lid % TILE;
    let own_turn = lid / TILE;
    let weight_turn = lid % DEPTH;
    let weight_row = lid / DEPTH;
    let filters = params.weight_offset + group * params.group_out * size;
    // A coordinate before the input wraps to a huge number, so one comparison finds both sides out of range.
    let place = first_place + own_place;
    var rest = place / params.output_w;
    let corner_w = place % params.output_w * params.stride_w - params.before_w;
    let corner_h = rest % params.output_h * params.stride_h - params.before_h;
    rest = rest / params.output_h;
    let corner_d = rest % params.output_d * params.stride_d - params.before_d;
    let channel = (rest / params.output_d * params.channels_in + group * params.group_in) * params.input_d;
    let corner = params.x_offset + ((channel + corner_d) * params.input_h + corner_h) * params.input_w + corner_w;

    let ty = lid / 16u * 4u;
    let tx = lid % 16u * 4u;
    var sum0 = vec4<f32>();
    var sum1 = vec4<f32>();
    var sum2 = vec4<f32>();
    var sum3 = vec4<f32>();
    if lid < DEPTH {
        offsets[lid] = offset_of(lid);
    }
    workgroupBarrier();
    for (var k0 = 0u; k0 < size; k0 += DEPTH) {
        for (var i = 0u; i < 4u; i++) {
            let turn = own_turn + 4u * i;
            let offset = offsets[turn];
            let inside = corner_d + offset.y < params.input_d && corner_h + offset.z < params.input_h && corner_w + offset.w < params.input_w;
            var value = 0.0;
            if inside && k0 + turn < size && place < params.positions {
                value = load_x(corner + offset.x);
            }
            tile_x[turn * PITCH + own_place] = value;
            let row = weight_row + 16u * i;
            var weight = 0.0;
            if top + row < params.group_out && k0 + weight_turn < size {
                weight = load_weight(filters + (top + row) * size + k0 + weight_turn);
            }
            tile_weight[weight_turn * PITCH + row] = weight;
        }
        workgroupBarrier();
        // Nobody reads these before the next barrier.
        if lid < DEPTH {
            offsets[lid] = offset_of(k0 + DEPTH + lid);
        }
        for (var k = 0u; k < DEPTH; k++) {
            let p = k * PITCH + ty;
            let q = k * PITCH + tx;
            let x = vec4(tile_x[q], tile_x[q + 1u], tile_x[q + 2u], tile_x[q + 3u]);
            sum0 += tile_weight[p] * x;
            sum1 += tile_weight[p + 1u] * x;
            sum2 += tile_weight[p + 2u] * x;
            sum3 += tile_weight[p + 3u] * x;
        }
        workgroupBarrier();
    }
    store_row(group, top + ty, first_place + tx, sum0);
    store_row(group, top + ty + 1u, first_place + tx, sum1);
    store_row(group, top + ty + 2u, first_place + tx, sum2);
    store_row(group, top + ty + 3u, first_place + tx, sum3);
}

/// Four positions of a channel of the group, as far as there are any.
fn store_row(group: u32, row: u32, place: u32, sums: vec4<f32>) {
    if row >= params.group_out {
        return;
    }
    let channel = group * params.group_out + row;
    let plane = params.output_d * params.output_h * params.output_w;
    let places = place + vec4(0u, 1u, 2u, 3u);
    let at = (places / plane * params.channels_out + channel) * plane + places % plane;
    let values = sums + start(channel);
    if places.x < params.positions { store_y(at.x, values.x); }
    if places.y < params.positions { store_y(at.y, values.y); }
    if places.z < params.positions { store_y(at.z, values.z); }
    if places.w < params.positions { store_y(at.w, values.w); }
}

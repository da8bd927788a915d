// Convolution as a matrix product: output channels by positions of the batch, summed over the elements of a window. A
// workgroup computes a tile of ROWS (32 or 64) x 64 from tiles of depth 16 in workgroup memory. The tile of the input
// is read directly, without a matrix of windows. `tile.rs` replaces lines that begin with # by the code for the results
// that a thread keeps in registers: 8 positions of 4 or 8 channels.

const left_PITCH: u32 = 17u;
const right_PITCH: u32 = 17u;

/// Weights and input. A vector holds four neighbouring channels or positions at one step. Each step has one vector of
/// padding to avoid bank conflicts.
var<workgroup> left_tile: array<vec4<f32>, 272>;
var<workgroup> right_tile: array<vec4<f32>, 272>;
/// For each of the 16 steps: the distance of its element from the corner of a window, in memory and along the three
/// axes.
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

fn run(work: u32, lid: u32) {
    let first = work % params.tiles * 64u;
    let group = work / params.tiles / params.blocks;
    let top = work / params.tiles % params.blocks * ROWS;
    let size = params.group_in * params.size_d * params.size_h * params.size_w;
    let filters = params.weight_offset + group * params.group_out * size;

    // The position whose elements this thread loads. A coordinate before the input wraps to a large number, so one
    // comparison detects both ends.
    let place = first + lid;
    var rest = place / params.output_w;
    let corner_w = place % params.output_w * params.stride_w - params.before_w;
    let corner_h = rest % params.output_h * params.stride_h - params.before_h;
    rest = rest / params.output_h;
    let corner_d = rest % params.output_d * params.stride_d - params.before_d;
    let channel = (rest / params.output_d * params.channels_in + group * params.group_in) * params.input_d;
    let corner = params.x_offset + ((channel + corner_d) * params.input_h + corner_h) * params.input_w + corner_w;

    let left_at = lid / 8u;
    let right_at = lid % 8u;
    #sums
    if lid < 16u {
        offsets[lid] = offset_of(lid);
    }
    workgroupBarrier();
    for (var k0 = 0u; k0 < size; k0 += 16u) {
        for (var k = 0u; k < 16u; k++) {
            let offset = offsets[k];
            let inside = corner_d + offset.y < params.input_d && corner_h + offset.z < params.input_h && corner_w + offset.w < params.input_w;
            var value = 0.0;
            if inside && k0 + k < size && place < params.positions {
                value = load_x(corner + offset.x);
            }
            right_tile[k * right_PITCH + lid / 4u][lid % 4u] = value;
        }
        for (var s = lid; s < ROWS * 16u; s += 64u) {
            let k = s % 16u;
            let row = s / 16u;
            var weight = 0.0;
            if top + row < params.group_out && k0 + k < size {
                weight = load_weight(filters + (top + row) * size + k0 + k);
            }
            left_tile[k * left_PITCH + row / 4u][row % 4u] = weight;
        }
        workgroupBarrier();
        // Not read before the next barrier.
        if lid < 16u {
            offsets[lid] = offset_of(k0 + 16u + lid);
        }
        // Elements past the end are 0 in both tiles and add nothing.
        #products
        workgroupBarrier();
    }
    let all = #results;
    for (var i = 0u; i < ROWS / 4u; i++) {
        store(group, top + i / 8u * 32u + left_at * 4u + i / 2u % 4u, first + i % 2u * 32u + right_at * 4u, all[i]);
    }
}

/// Stores four positions of a channel of the group, as far as they exist.
fn store(group: u32, row: u32, place: u32, sums: vec4<f32>) {
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

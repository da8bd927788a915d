// Direct convolution. A thread computes CHANNELS output channels of one group at four output positions of the batch.
// The positions are `span` apart, so that neighbouring threads read neighbouring elements and every weight is used for
// four products.

/// Writes the thread's channel `i`, if the group has it, at the four positions. Positions past the end are skipped.
fn store(out: u32, left: u32, i: u32, place: vec4<u32>, first: u32, sums: vec4<f32>) {
    if i >= left {
        return;
    }
    let channel = out + i;
    let values = sums + start(channel);
    let plane = params.output_d * params.output_h * params.output_w;
    let at = ((place / plane) * params.channels_out + channel) * plane + place % plane;
    store_y(at.x, values.x);
    if first + params.span < params.positions {
        store_y(at.y, values.y);
    }
    if first + 2u * params.span < params.positions {
        store_y(at.z, values.z);
    }
    if first + 3u * params.span < params.positions {
        store_y(at.w, values.w);
    }
}

fn run(thread: u32) {
    let block = thread / params.span;
    let group = block / params.blocks;
    let channel = (block % params.blocks) * CHANNELS;
    let first = thread % params.span;
    let place = min(first + vec4(0u, 1u, 2u, 3u) * params.span, vec4(params.positions - 1u));

    // A coordinate before the input wraps to a large number, so one comparison detects both ends.
    var rest = place / params.output_w;
    let corner_w = (place % params.output_w) * params.stride_w - params.before_w;
    let corner_h = (rest % params.output_h) * params.stride_h - params.before_h;
    rest = rest / params.output_h;
    let corner_d = (rest % params.output_d) * params.stride_d - params.before_d;
    let plane = params.input_d * params.input_h * params.input_w;
    let image = params.x_offset + ((rest / params.output_d) * params.channels_in + group * params.group_in) * plane;

    // Channels past the last one of the group read its weights again and are not stored.
    let taps = params.size_d * params.size_h * params.size_w;
    let last = params.group_out - 1u;
    let size = params.group_in * taps;
    let filters = params.weight_offset + group * params.group_out * size
        + min(channel + vec4(0u, 1u, 2u, 3u), vec4(last)) * size;
    let more_filters = params.weight_offset + group * params.group_out * size
        + min(channel + vec4(4u, 5u, 6u, 7u), vec4(last)) * size;

    var sum0 = vec4(0.0);
    var sum1 = vec4(0.0);
    var sum2 = vec4(0.0);
    var sum3 = vec4(0.0);
    var sum4 = vec4(0.0);
    var sum5 = vec4(0.0);
    var sum6 = vec4(0.0);
    var sum7 = vec4(0.0);
    var tap = 0u;
    for (var kd = 0u; kd < params.size_d; kd++) {
        let d = corner_d + kd * params.dilation_d;
        let inside_d = d < vec4(params.input_d);
        for (var kh = 0u; kh < params.size_h; kh++) {
            let h = corner_h + kh * params.dilation_h;
            let inside_h = inside_d & (h < vec4(params.input_h));
            for (var kw = 0u; kw < params.size_w; kw++) {
                let w = corner_w + kw * params.dilation_w;
                let inside = inside_h & (w < vec4(params.input_w));
                if any(inside) {
                    var at = image + select(vec4(0u), (d * params.input_h + h) * params.input_w + w, inside);
                    var weights = filters + tap;
                    var more_weights = more_filters + tap;
                    for (var c = 0u; c < params.group_in; c++) {
                        let read = vec4(load_x(at.x), load_x(at.y), load_x(at.z), load_x(at.w));
                        let values = select(vec4(0.0), read, inside);
                        sum0 += load_weight(weights.x) * values;
                        if CHANNELS > 1u {
                            sum1 += load_weight(weights.y) * values;
                            sum2 += load_weight(weights.z) * values;
                            sum3 += load_weight(weights.w) * values;
                        }
                        if CHANNELS > 4u {
                            sum4 += load_weight(more_weights.x) * values;
                            sum5 += load_weight(more_weights.y) * values;
                            sum6 += load_weight(more_weights.z) * values;
                            sum7 += load_weight(more_weights.w) * values;
                            more_weights += taps;
                        }
                        at += plane;
                        weights += taps;
                    }
                }
                tap += 1u;
            }
        }
    }

    let out = group * params.group_out + channel;
    let left = params.group_out - channel;
    store(out, left, 0u, place, first, sum0);
    if CHANNELS > 1u {
        store(out, left, 1u, place, first, sum1);
        store(out, left, 2u, place, first, sum2);
        store(out, left, 3u, place, first, sum3);
    }
    if CHANNELS > 4u {
        store(out, left, 4u, place, first, sum4);
        store(out, left, 5u, place, first, sum5);
        store(out, left, 6u, place, first, sum6);
        store(out, left, 7u, place, first, sum7);
    }
}

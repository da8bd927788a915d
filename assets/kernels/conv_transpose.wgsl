// Transposed convolution. A thread sums all products that contribute to one output element.

fn run(element: u32) {
    let w = element % params.output_w + params.before_w;
    var rest = element / params.output_w;
    let h = rest % params.output_h + params.before_h;
    rest = rest / params.output_h;
    let d = rest % params.output_d + params.before_d;
    rest = rest / params.output_d;
    let channel = rest % params.channels_out;
    let batch = rest / params.channels_out;
    let group = channel / params.group_out;

    let plane = params.input_d * params.input_h * params.input_w;
    let taps = params.size_d * params.size_h * params.size_w;
    let image = params.x_offset + (batch * params.channels_in + group * params.group_in) * plane;
    let filters = params.weight_offset
        + (group * params.group_in * params.group_out + channel % params.group_out) * taps;

    var sum = start(channel);
    for (var kd = 0u; kd < params.size_d; kd++) {
        // The input position times the stride, if there is such a position.
        let from_d = d - kd * params.dilation_d;
        if from_d % params.stride_d != 0u || from_d / params.stride_d >= params.input_d || d < kd * params.dilation_d {
            continue;
        }
        for (var kh = 0u; kh < params.size_h; kh++) {
            let from_h = h - kh * params.dilation_h;
            if from_h % params.stride_h != 0u || from_h / params.stride_h >= params.input_h
                || h < kh * params.dilation_h {
                continue;
            }
            for (var kw = 0u; kw < params.size_w; kw++) {
                let from_w = w - kw * params.dilation_w;
                if from_w % params.stride_w != 0u || from_w / params.stride_w >= params.input_w
                    || w < kw * params.dilation_w {
                    continue;
                }
                let row = from_d / params.stride_d * params.input_h + from_h / params.stride_h;
                var at = image + row * params.input_w + from_w / params.stride_w;
                var weight_at = filters + (kd * params.size_h + kh) * params.size_w + kw;
                for (var c = 0u; c < params.group_in; c++) {
                    sum += load_weight(weight_at) * load_x(at);
                    at += plane;
                    weight_at += params.group_out * taps;
                }
            }
        }
    }
    store_y(element, sum);
}

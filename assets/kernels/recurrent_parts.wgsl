// What the cells of recurrent layers share. All positions are in the output but `gates`, and `row` in the first states.
struct Place {
    gates: u32,
    row: u32,
    before: u32,
    now: u32,
    kept: u32,
    is_first: bool,
}

// The hidden state of unit `k` before this step.
fn state(at: Place, k: u32) -> f32 {
    if at.is_first {
        return load_h(params.h_offset + at.row + k);
    }
    return y[at.before + k];
}

// What an activation receives of a sum.
fn bounded(x: f32) -> f32 {
    let bound = bitcast<f32>(params.bound);
    // Not `clamp`, so that NaN stays.
    let low = select(x, bound, CLIP == 1u && x > bound);
    return select(low, -bound, CLIP == 1u && x < -bound);
}

// The functions by their number; see `ActivationFunction`.
fn activate(function: u32, x: f32, a: f32, b: f32) -> f32 {
    switch function {
        case 0u: { return 1.0 / (1.0 + exp_f32(-x)); }
        case 1u: { return tanh_f32(x); }
        case 2u: { return select(x, 0.0, x < 0.0); }
        case 3u: { return a * x + b; }
        case 4u: { return select(x, a * x, x < 0.0); }
        case 5u: { return select(x, 0.0, x < a); }
        case 6u: { return a * tanh_f32(b * x); }
        case 7u: {
            let line = a * x + b;
            return select(select(line, 1.0, line > 1.0), 0.0, line < 0.0);
        }
        case 8u: { return select(x, a * (exp_f32(min(x, 0.0)) - 1.0), x < 0.0); }
        case 9u: { return x / (1.0 + abs(x)); }
        default: { return select(x, 0.0, x < 0.0) + log_f32(1.0 + exp_f32(-abs(x))); }
    }
}

fn activate_0(x: f32) -> f32 {
    return activate(FUNCTION_0, x, bitcast<f32>(params.alpha_0), bitcast<f32>(params.beta_0));
}

fn activate_1(x: f32) -> f32 {
    return activate(FUNCTION_1, x, bitcast<f32>(params.alpha_1), bitcast<f32>(params.beta_1));
}

fn activate_2(x: f32) -> f32 {
    return activate(FUNCTION_2, x, bitcast<f32>(params.alpha_2), bitcast<f32>(params.beta_2));
}

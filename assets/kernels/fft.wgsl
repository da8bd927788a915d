// Fourier transforms in workgroup memory (Stockham). Each stage reads one copy of the points and writes the other one in
// an order that needs no sorting at the end. A workgroup has `group` transforms.

var<workgroup> points: array<vec2<f32>, 2u * POINTS>;

// Which copy the last stage has written.
var<private> current: u32;

fn transformed(slot: u32, k: u32) -> vec2<f32> {
    return points[current + slot * params.n + k];
}

// Times −i.
fn turned(v: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(v.y, -v.x);
}

struct Four {
    a: vec2<f32>,
    b: vec2<f32>,
    c: vec2<f32>,
    d: vec2<f32>,
}

fn four(a: vec2<f32>, b: vec2<f32>, c: vec2<f32>, d: vec2<f32>) -> Four {
    let even = a + c;
    let odd = turned(b - d);
    return Four(even + b + d, a - c + odd, even - b - d, a - c - odd);
}

// Point `t` of a butterfly, times its root.
fn twisted(at: u32, turn: u32) -> vec2<f32> {
    return times(points[at], root(turn));
}

// Butterflies of `radix` points over `span` points that are done. `count` of them make a transform.
fn stage(radix: u32, span: u32, from_copy: u32, to_copy: u32, rows: u32, lane: u32) {
    let n = params.n;
    let count = n / radix;
    let step = count / span;
    if (radix > 5u) & (radix != 8u) {
        // Any prime: a thread sums the points of a result.
        for (var item = lane; item < rows * n; item += LANES) {
            let row = item / n;
            let t = item % n / count;
            let i = item % n % count;
            let k = i % span;
            let each = k * step + t * count;
            var sum = vec2<f32>(0.0);
            var turn = 0u;
            for (var q = 0u; q < radix; q++) {
                sum += twisted(from_copy + row * n + i + q * count, turn);
                turn += each;
                turn -= select(0u, n, turn >= n);
            }
            points[to_copy + row * n + (i - k) * radix + k + t * span] = sum;
        }
        return;
    }
    for (var item = lane; item < rows * count; item += LANES) {
        let row = item / count;
        let i = item % count;
        let k = i % span;
        let turn = k * step;
        let at = from_copy + row * n + i;
        let to = to_copy + row * n + (i - k) * radix + k;
        switch radix {
            case 2u: {
                let a = points[at];
                let b = twisted(at + count, turn);
                points[to] = a + b;
                points[to + span] = a - b;
            }
            case 3u: {
                let a = points[at];
                let b = twisted(at + count, turn);
                let c = twisted(at + 2u * count, 2u * turn);
                let even = a - 0.5 * (b + c);
                let odd = 0.8660254037844386 * turned(b - c);
                points[to] = a + b + c;
                points[to + span] = even + odd;
                points[to + 2u * span] = even - odd;
            }
            case 4u: {
                let y = four(
                    points[at],
                    twisted(at + count, turn),
                    twisted(at + 2u * count, 2u * turn),
                    twisted(at + 3u * count, 3u * turn),
                );
                points[to] = y.a;
                points[to + span] = y.b;
                points[to + 2u * span] = y.c;
                points[to + 3u * span] = y.d;
            }
            case 5u: {
                let a = points[at];
                let b = twisted(at + count, turn);
                let c = twisted(at + 2u * count, 2u * turn);
                let d = twisted(at + 3u * count, 3u * turn);
                let e = twisted(at + 4u * count, 4u * turn);
                let near = b + e;
                let far = c + d;
                let near_odd = turned(b - e);
                let far_odd = turned(c - d);
                // Cosines and sines of one and two fifths of a turn.
                let even_1 = a + 0.30901699437494745 * near - 0.8090169943749475 * far;
                let even_2 = a - 0.8090169943749475 * near + 0.30901699437494745 * far;
                let odd_1 = 0.9510565162951535 * near_odd + 0.5877852522924731 * far_odd;
                let odd_2 = 0.5877852522924731 * near_odd - 0.9510565162951535 * far_odd;
                points[to] = a + near + far;
                points[to + span] = even_1 + odd_1;
                points[to + 2u * span] = even_2 + odd_2;
                points[to + 3u * span] = even_2 - odd_2;
                points[to + 4u * span] = even_1 - odd_1;
            }
            default: {
                let even = four(
                    points[at],
                    twisted(at + 2u * count, 2u * turn),
                    twisted(at + 4u * count, 4u * turn),
                    twisted(at + 6u * count, 6u * turn),
                );
                let odd = four(
                    twisted(at + count, turn),
                    twisted(at + 3u * count, 3u * turn),
                    twisted(at + 5u * count, 5u * turn),
                    twisted(at + 7u * count, 7u * turn),
                );
                let b = times(odd.b, vec2<f32>(0.7071067811865476, -0.7071067811865476));
                let c = turned(odd.c);
                let d = times(odd.d, vec2<f32>(-0.7071067811865476, -0.7071067811865476));
                points[to] = even.a + odd.a;
                points[to + span] = even.b + b;
                points[to + 2u * span] = even.c + c;
                points[to + 3u * span] = even.d + d;
                points[to + 4u * span] = even.a - odd.a;
                points[to + 5u * span] = even.b - b;
                points[to + 6u * span] = even.c - c;
                points[to + 7u * span] = even.d - d;
            }
        }
    }
}

fn run(work: u32, lane: u32) {
    let n = params.n;
    let first = work * params.group;
    let rows = min(params.group, params.rows - first);
    for (var item = lane; item < rows * n; item += LANES) {
        // Neighbouring threads read neighbouring elements.
        if PASS == 1u {
            points[item % rows * n + item / rows] = fetch(first + item % rows, item / rows);
        } else {
            points[item] = fetch(first + item / n, item % n);
        }
    }
    workgroupBarrier();
    current = 0u;
    var span = 1u;
    for (var i = 0u; i < params.stages; i++) {
        let radix = select(params.radices_0, params.radices_1, i >= 4u) >> (i % 4u * 8u) & 255u;
        stage(radix, span, current, POINTS - current, rows, lane);
        span *= radix;
        current = POINTS - current;
        workgroupBarrier();
    }
    for (var item = lane; item < rows * params.emits; item += LANES) {
        if PASS != 0u {
            emit(first + item % rows, item % rows, item / rows);
        } else {
            emit(first + item / params.emits, item / params.emits, item % params.emits);
        }
    }
}

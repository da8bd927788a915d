//! Products in chains. The text is fully unrolled because drivers only keep variables in registers that are never
//! indexed.

use core::fmt::Write;

use super::NAMES;
use super::wgsl::{Text, Values, last_two, plus};
use crate::ir::Source;
use crate::kernel::{Kernel, Step};

/// Rows per thread if threads do not share loads.
const ROWS: usize = 4;

/// A product of rows of `k` numbers with `n` columns.
pub(super) struct Product<'a> {
    pub link: &'a Step,
    pub n: usize,
    pub k: usize,
}

/// The axis along which the weights are read four at a time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Along {
    K,
    /// The number of columns is a multiple of four.
    Columns,
    Neither,
}

/// The inputs that a product reads four at a time, and whether all reads are aligned to four elements.
pub(super) fn quads(link: &Step, step: &Step) -> Vec<(&'static str, bool)> {
    let Kernel::MatMul(kernel) = &link.kernel else { return Vec::new() };
    let product = Product { link, n: kernel.n, k: kernel.k };
    let mut quads = Vec::new();
    let starts = |input: u32| step.inputs[input as usize].layout.offset.is_multiple_of(4);
    if let Source::Slot(input) = link.inputs[0].source
        && let [line, 1] = last_two(&link.inputs[0].layout)
    {
        quads.push((NAMES[input as usize], starts(input) && line.rem_euclid(4) == 0));
    }
    if let Source::Slot(input) = link.inputs[1].source {
        let [k, n] = last_two(&link.inputs[1].layout);
        let other = match product.along() {
            Along::K => n,
            Along::Columns => k,
            Along::Neither => return quads,
        };
        quads.push((NAMES[input as usize], starts(input) && other.rem_euclid(4) == 0));
    }
    quads
}

impl Product<'_> {
    fn along(&self) -> Along {
        match last_two(&self.link.inputs[1].layout) {
            [1, _] => Along::K,
            [_, 1] if self.n.is_multiple_of(4) => Along::Columns,
            _ => Along::Neither,
        }
    }

    /// `LINK_run`.
    pub(super) fn text(&self, text: &Text, name: &str, values: &Values) -> String {
        let (n, lanes) = (self.n, text.lanes);
        // Rows and quads of columns of a thread.
        let (rows, quads) = match text.shared {
            true => (text.rows, if n > 4 * lanes { 2 } else { 1 }),
            false => (text.rows.min(ROWS), 1),
        };
        // Rows that a thread loads.
        let loads = if text.shared { rows.div_ceil(lanes) } else { rows };
        let mut out = String::new();
        let (parameters, bases) = (values.parameters(), values.arguments());
        // Writing to a string cannot fail.
        let _ = writeln!(out, "fn {name}_run(first: u32, lane: u32{parameters}) {{");
        if text.shared {
            // All lanes take part in every turn, because they share loads.
            let pitch = 4 * lanes;
            let tiles = n.div_ceil(pitch * quads);
            let _ = writeln!(out, "    for (var tile = 0u; tile < {tiles}u; tile++) {{");
            let _ = writeln!(out, "        let top = 0u;\n        let column = tile * {}u + lane * 4u;", pitch * quads);
        } else {
            let groups = n.div_ceil(4);
            let items = text.rows / rows * groups;
            let _ = writeln!(out, "    for (var item = lane; item < {items}u; item += THREADS) {{");
            let _ = writeln!(out, "        let top = item / {groups}u * {rows}u;");
            let _ = writeln!(out, "        let column = item % {groups}u * 4u;");
        }
        for load in 0..loads {
            let row = match text.shared {
                true => format!("min({}u + lane, {}u)", load * lanes, text.rows - 1),
                false => format!("top + {load}u"),
            };
            let _ = writeln!(out, "        let r{load} = {row};");
            if matches!(self.link.inputs[0].source, Source::Slot(_)) {
                let _ = writeln!(out, "        let row{load} = min(first + r{load}, params.rows - 1u);");
            }
        }
        self.columns(&mut out, quads, lanes);
        for (row, quad) in (0..rows).flat_map(|row| (0..quads).map(move |quad| (row, quad))) {
            let _ = writeln!(out, "        var sum{row}_{quad} = vec4<f32>();");
        }
        let whole = self.k / 4 * 4;
        if whole > 0 {
            let _ = writeln!(out, "        for (var k = 0u; k < {whole}u; k += 4u) {{");
            for load in 0..loads {
                let four = self.left(text, values, load, 4);
                let _ = writeln!(out, "            let a{load} = {four};");
            }
            self.right(&mut out, quads);
            for row in 0..rows {
                for (step, member) in ["x", "y", "z", "w"].into_iter().enumerate() {
                    let a = match text.shared {
                        true => format!("subgroupBroadcast(a{}.{member}, {}u)", row / lanes, row % lanes),
                        false => format!("a{row}.{member}"),
                    };
                    let _ = writeln!(out, "            {{ let a = {a};");
                    for quad in 0..quads {
                        let _ = writeln!(out, "            sum{row}_{quad} += a * b{step}_{quad};");
                    }
                    out.push_str("            }\n");
                }
            }
            out.push_str("        }\n");
        }
        if whole < self.k {
            let _ = writeln!(out, "        for (var k = {whole}u; k < {}u; k++) {{", self.k);
            for load in 0..loads {
                let one = self.left(text, values, load, 1);
                let _ = writeln!(out, "            let a{load} = {one};");
            }
            for quad in 0..quads {
                let four: Vec<String> = (0..4).map(|c| self.weight(quad, c, "k")).collect();
                let _ = writeln!(out, "            let b{quad} = vec4<f32>({});", four.join(", "));
            }
            for row in 0..rows {
                let a = match text.shared {
                    true => format!("subgroupBroadcast(a{}, {}u)", row / lanes, row % lanes),
                    false => format!("a{row}"),
                };
                let _ = writeln!(out, "            {{ let a = {a};");
                for quad in 0..quads {
                    let _ = writeln!(out, "            sum{row}_{quad} += a * b{quad};");
                }
                out.push_str("            }\n");
            }
            out.push_str("        }\n");
        }
        self.store(&mut out, name, &bases, [rows, quads, lanes]);
        out + "    }\n}\n"
    }

    /// Elements of a row of the left-hand side that a thread loads: one at `k`, or four from there.
    fn left(&self, text: &Text, values: &Values, load: usize, count: usize) -> String {
        let a = &self.link.inputs[0];
        let (row, r) = (format!("row{load}"), format!("r{load}"));
        let one = |step: usize| {
            let place = if step == 0 { "k".to_owned() } else { format!("(k + {step}u)") };
            text.element(a, values, [&row, &r, &place])
        };
        match (a.source, last_two(&a.layout)) {
            _ if count == 1 => one(0),
            (Source::Slot(input), [line, 1]) => {
                let name = NAMES[input as usize];
                format!("load_{name}4(params.{name}_offset{} + k)", plus(&row, line))
            }
            _ => format!("vec4<f32>({})", (0..4).map(one).collect::<Vec<_>>().join(", ")),
        }
    }

    /// The columns of a thread, as far as they exist.
    fn columns(&self, out: &mut String, quads: usize, lanes: usize) {
        let pitch = 4 * lanes;
        for quad in 0..quads {
            if self.along() == Along::Columns {
                let _ = writeln!(out, "        let c{quad} = min(column + {}u, {}u);", quad * pitch, self.n - 4);
                continue;
            }
            for c in 0..4 {
                let column = quad * pitch + c;
                let _ = writeln!(out, "        let c{quad}_{c} = min(column + {column}u, {}u);", self.n - 1);
            }
        }
    }

    /// One weight of the thread's columns.
    fn weight(&self, quad: usize, c: usize, k: &str) -> String {
        let [along_k, along_n] = last_two(&self.link.inputs[1].layout);
        let column = match self.along() {
            Along::Columns => format!("(c{quad} + {c}u)"),
            Along::K | Along::Neither => format!("c{quad}_{c}"),
        };
        match self.link.inputs[1].source {
            Source::Slot(input) => {
                let name = NAMES[input as usize];
                let place = format!("params.{name}_offset{}{}", plus(k, along_k), plus(&column, along_n));
                format!("load_{name}({place})")
            }
            // Weights are inputs of the chain.
            Source::Scratch(_) | Source::Constant(_) | Source::Iota | Source::Fused => "0.0".to_owned(),
        }
    }

    /// The weights of four steps of k: `b0_0`, …, by step and quad of columns.
    fn right(&self, out: &mut String, quads: usize) {
        let [along_k, along_n] = last_two(&self.link.inputs[1].layout);
        let Source::Slot(input) = self.link.inputs[1].source else { return };
        let name = NAMES[input as usize];
        for quad in 0..quads {
            match self.along() {
                Along::K => {
                    for c in 0..4 {
                        let column = plus(&format!("c{quad}_{c}"), along_n);
                        let _ = writeln!(
                            out,
                            "            let w{quad}_{c} = load_{name}4(params.{name}_offset{column} + k);"
                        );
                    }
                    for (step, member) in ["x", "y", "z", "w"].into_iter().enumerate() {
                        let four: Vec<String> = (0..4).map(|c| format!("w{quad}_{c}.{member}")).collect();
                        let _ = writeln!(out, "            let b{step}_{quad} = vec4<f32>({});", four.join(", "));
                    }
                }
                Along::Columns => {
                    for step in 0..4 {
                        let k = plus(&format!("(k + {step}u)"), along_k);
                        let place = format!("params.{name}_offset{k} + c{quad}");
                        let _ = writeln!(out, "            let b{step}_{quad} = load_{name}4({place});");
                    }
                }
                Along::Neither => {
                    for step in 0..4 {
                        let four: Vec<String> =
                            (0..4).map(|c| self.weight(quad, c, &format!("(k + {step}u)"))).collect();
                        let _ = writeln!(out, "            let b{step}_{quad} = vec4<f32>({});", four.join(", "));
                    }
                }
            }
        }
    }

    /// Stores the results in a loop that selects the variable, so that the epilogue occurs four times in the text instead
    /// of once per variable.
    fn store(&self, out: &mut String, name: &str, bases: &str, [rows, quads, lanes]: [usize; 3]) {
        let count = rows * quads;
        let _ = writeln!(out, "        for (var i = 0u; i < {count}u; i++) {{\n            var v: vec4<f32>;");
        out.push_str("            switch (i) {\n");
        for i in 0..count {
            let _ = writeln!(out, "                case {i}u: {{ v = sum{}_{}; }}", i / quads, i % quads);
        }
        out.push_str("                default: { }\n            }\n");
        let _ = writeln!(out, "            let to = column + i % {quads}u * {}u;", 4 * lanes);
        for (c, member) in ["x", "y", "z", "w"].into_iter().enumerate() {
            let _ = writeln!(
                out,
                "            if (to + {c}u < {}u) {{ {name}_put(first, top + i / {quads}u, to + {c}u, v.{member}{bases}); }}",
                self.n
            );
        }
        out.push_str("        }\n");
    }
}

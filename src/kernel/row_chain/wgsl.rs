//! The text of a chain. Each link is a function. Links that do the same with the same inputs share one, and a series of
//! calls of the same function is a loop, so that a hundred products have a short text.
//!
//! | adapter | threads | products |
//! |---|---|---|
//! | GPU | 128 | four rows × four columns per thread |
//! | software with subgroups | one subgroup | all rows of the block × 4 or 8 columns per lane, which share loads |
//! | software without | 8 | as on a GPU |
//!
//! Widths and strides are constants in the text. The number of rows and all offsets are parameters, so one pipeline
//! serves any number of rows that fills a block.

use core::fmt::Write;

use smallvec::SmallVec;

use super::link::width;
use super::product::{self, Product};
use super::{LANES, NAMES, RowChainKernel};
use crate::ir::{Class, Expr, Layout, NormKind, Operand, Program, Shape, Source};
use crate::kernel::wgsl::{Builder, grid};
use crate::kernel::{Caps, Fused, Kernel, Launch, Step};

/// Threads of a workgroup on a software adapter without subgroups.
const FEW_LANES: usize = 8;

/// The names of the current element: row of the whole, row of the block, place in the row.
const HERE: [&str; 3] = ["row", "r", "c"];

/// The launch of a chain. `None` if a workgroup cannot hold a row.
pub(crate) fn lower(step: &Step, kernel: &RowChainKernel, caps: &Caps) -> Option<Launch> {
    let rows = kernel.block((caps.workgroup_memory.min(16384) / 4) as usize)?;
    let shared = caps.software_lanes();
    let lanes = match shared {
        Some(lanes) => lanes,
        None if caps.software => FEW_LANES,
        None => LANES.min(caps.invocations as usize),
    };
    let quads: Vec<(&str, bool)> = kernel.links.iter().flat_map(|link| product::quads(link, step)).collect();
    let mut builder = Builder::with_quads(step, &quads, caps);
    builder.params.size("rows", kernel.rows);
    builder.constant("ROWS", rows as u32).constant("THREADS", lanes as u32);
    let mut text =
        Text { kernel, step, rows, lanes, shared: shared.is_some(), functions: Vec::new(), calls: Vec::new() };
    for link in &kernel.links {
        text.link(link, &mut builder);
    }
    let lane = if text.shared { "subgroup_invocation_id" } else { "local_invocation_index" };
    let body = include_str!("../../../assets/kernels/row_chain.wgsl")
        .replace("CELLS", &(kernel.cells * rows).max(1).to_string())
        .replace("LANES", &lanes.to_string())
        .replace("LANE)", &format!("{lane})"));
    let fold = include_str!("../../../assets/kernels/row_chain_fold.wgsl").replace("LANES", &lanes.to_string());
    let fold = if kernel.folds() { fold } else { String::new() };
    let functions: String = text.functions.iter().map(|function| function.text.as_str()).collect();
    let body = [body, fold, functions, text.chain()].concat();
    Some(builder.finish(&body, grid(kernel.rows.div_ceil(rows), caps)))
}

/// The text under construction.
pub(super) struct Text<'a> {
    kernel: &'a RowChainKernel,
    pub step: &'a Step,
    /// Rows of a block.
    pub rows: usize,
    pub lanes: usize,
    /// Whether lanes are those of a subgroup and share what they load.
    pub shared: bool,
    functions: Vec<Function>,
    /// The function of each link, and where its values begin.
    calls: Vec<(usize, SmallVec<[usize; 4]>)>,
}

/// The functions of a link.
struct Function {
    /// The text without the number of the link, if other links can share it.
    common: Option<String>,
    text: String,
}

/// The names that a link has for its values: `v0`, `v1`, …, in the order of first use.
#[derive(Default)]
pub(super) struct Values(SmallVec<[u32; 4]>);

impl Values {
    /// The values of a link.
    fn of(link: &Step) -> Self {
        let mut values = Self::default();
        for operand in link.reads().chain(&link.outputs) {
            if let Source::Scratch(value) = operand.source
                && !values.0.contains(&value)
            {
                values.0.push(value);
            }
        }
        values
    }

    fn name(&self, value: u32) -> String {
        format!("v{}", self.0.iter().position(|&v| v == value).unwrap_or(0))
    }

    /// The parameters of a function that uses them.
    pub(super) fn parameters(&self) -> String {
        (0..self.0.len()).map(|i| format!(", v{i}: u32")).collect()
    }

    /// The arguments of a call from another function of the link.
    pub(super) fn arguments(&self) -> String {
        (0..self.0.len()).map(|i| format!(", v{i}")).collect()
    }
}

impl Text<'_> {
    /// Adds the functions of a link, unless an earlier link has the same, and its call.
    fn link(&mut self, link: &Step, builder: &mut Builder) {
        let name = format!("link{}", self.functions.len());
        let values = Values::of(link);
        let put = self.put(link, &name, &values, builder);
        let run = match &link.kernel {
            Kernel::MatMul(kernel) => {
                let product = Product { link, n: kernel.n, k: kernel.k };
                product.text(self, &name, &values)
            }
            _ => self.lines(link, &name, &values, builder),
        };
        let text = put + &run;
        let common = shareable(link).then(|| text.replace(&name, "LINK"));
        let same = |function: &Function| function.common.is_some() && function.common == common;
        let at = self.functions.iter().position(same).unwrap_or_else(|| {
            self.functions.push(Function { common, text });
            self.functions.len() - 1
        });
        let begins = values.0.iter().map(|&value| self.kernel.values[value as usize].at * self.rows).collect();
        self.calls.push((at, begins));
    }

    /// The expression for an element of an operand with rows. The names are those of its row in the whole operand, of its
    /// row in the block, and of its place in the row.
    pub(super) fn element(&self, operand: &Operand, values: &Values, [row, r, c]: [&str; 3]) -> String {
        let coordinates = coordinates(&operand.layout.shape, c);
        let layout = &operand.layout;
        let inside = || coordinates.iter().zip(&layout.strides[1..]);
        match operand.source {
            Source::Slot(input) => {
                let name = NAMES[input as usize];
                let mut place = format!("params.{name}_offset{}", plus(row, layout.strides[0]));
                inside().for_each(|(c, &stride)| place.push_str(&plus(c, stride)));
                format!("load_{name}({place})")
            }
            Source::Scratch(value) => {
                let mut place = format!("{} + {}u{}", values.name(value), layout.offset, plus(r, layout.strides[0]));
                inside().for_each(|(c, &stride)| place.push_str(&plus(c, stride)));
                format!("cells[{place}]")
            }
            // Other operands are not in memory.
            Source::Constant(_) | Source::Iota | Source::Fused => "0.0".to_owned(),
        }
    }

    /// `LINK_put(first, r, c, v)`: applies the epilogue to value `v` of row `r` and number `c`, and writes the results.
    fn put(&self, link: &Step, name: &str, values: &Values, builder: &mut Builder) -> String {
        let mut text = String::new();
        let (program, inputs, scalars) = match (&link.kernel, &link.epilogue) {
            (Kernel::Map(map), _) => (Some(&map.program), &link.inputs[..], &link.scalars[..]),
            (_, Some(Fused { map, inputs, scalars })) => (Some(&map.program), &inputs[..], &scalars[..]),
            _ => (None, &[][..], &[][..]),
        };
        if let Some(program) = program {
            let classes: Vec<Class> = inputs.iter().map(|input| input.dtype.class()).collect();
            let scalars: Vec<u32> = scalars.iter().map(|&scalar| self.step.scalars[scalar as usize]).collect();
            text.push_str(&builder.element(&format!("{name}_after"), program, &classes, &scalars));
        }
        let argument = |input: &Operand| match input.source {
            Source::Fused => "v".to_owned(),
            _ => self.element(input, values, HERE),
        };
        let arguments: Vec<String> = inputs.iter().map(argument).collect();
        let parameters = values.parameters();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "fn {name}_put(first: u32, r: u32, c: u32, v: f32{parameters}) {{");
        if program.is_some() {
            let _ = writeln!(text, "    let row = min(first + r, params.rows - 1u);");
            let _ = writeln!(text, "    let after = {name}_after({});", arguments.join(", "));
        }
        for (i, output) in link.outputs.iter().enumerate() {
            let result = if program.is_some() { format!("after.v{i}") } else { "v".to_owned() };
            let width = width(&output.layout);
            match output.source {
                Source::Slot(number) => {
                    let y = self.output(number);
                    let place = format!("params.{y}_offset + (first + r) * {width}u + c");
                    let _ = writeln!(text, "    if (first + r < params.rows) {{ {y}[{place}] = {result}; }}");
                }
                Source::Scratch(value) => {
                    let _ = writeln!(text, "    cells[{} + r * {width}u + c] = {result};", values.name(value));
                }
                // Results are in memory or in cells.
                Source::Constant(_) | Source::Iota | Source::Fused => {}
            }
        }
        text + "}\n"
    }

    /// The name of an output.
    fn output(&self, number: u32) -> String {
        match number as usize - self.step.inputs.len() {
            0 => "y".to_owned(),
            i => format!("y{i}x"),
        }
    }

    /// `LINK_run` of a softmax, a norm or a map.
    fn lines(&self, link: &Step, name: &str, values: &Values, builder: &mut Builder) -> String {
        let mut marks: Vec<(&str, String)> = Vec::new();
        let (text, lines, n) = match &link.kernel {
            Kernel::Softmax(softmax) => {
                for file in ["min_max", "exp_f32", "log_f32", "is_inf", "from_bits"] {
                    builder.need(file);
                }
                marks.push(("LOG", format!("{}u", u32::from(softmax.log))));
                (include_str!("../../../assets/kernels/row_chain_softmax.wgsl"), softmax.outer, softmax.n)
            }
            Kernel::RowNorm(norm) => {
                builder.need("min_max");
                let kind = match norm.kind {
                    NormKind::Layer => 0,
                    NormKind::Rms => 1,
                    NormKind::L2 => 2,
                };
                marks.push(("KIND", format!("{kind}u")));
                let scalar = link.scalars.first().and_then(|&scalar| self.step.scalars.get(scalar as usize));
                marks.push((
                    "EPSILON",
                    match scalar {
                        Some(&scalar) => {
                            builder.params.scalar(&format!("{name}_epsilon"), Class::Float, scalar);
                            format!("params.{name}_epsilon")
                        }
                        None => "0.0".to_owned(),
                    },
                ));
                let mut weights = link.inputs[1..].iter();
                for (mark, given, without) in [("WEIGHT", norm.weight, "1.0"), ("BIAS", norm.bias, "0.0")] {
                    let operand = if given { weights.next() } else { None };
                    marks.push((mark, operand.map_or(without.to_owned(), weight)));
                }
                (include_str!("../../../assets/kernels/row_chain_norm.wgsl"), norm.rows, norm.n)
            }
            _ => {
                let width = link.outputs.first().map_or(0, |output| width(&output.layout));
                marks.push(("WIDTH", format!("{width}u")));
                (include_str!("../../../assets/kernels/row_chain_map.wgsl"), 0, 1)
            }
        };
        let per = lines / self.kernel.rows;
        let lines = per * self.rows;
        // Threads that share a line.
        let share = self.lanes / lines.next_power_of_two().max(1);
        let parts = 1 << share.min(n).max(1).ilog2();
        let fold = |kind: &str, own: &str| match parts {
            1 => own.to_owned(),
            _ => format!("fold_{kind}(lane, {parts}u, {own})"),
        };
        if let Some(x) = link.inputs.first().filter(|_| lines > 0) {
            marks.push(("VALUE", self.element(x, values, HERE)));
        }
        marks.push(("FOLD_MAX", fold("max", "top")));
        marks.push(("FOLD_SUM", fold("sum", "sum")));
        marks.push(("ARGUMENTS", values.parameters()));
        marks.push(("BASES", values.arguments()));
        marks.push(("LINES", format!("{lines}u")));
        marks.push(("PARTS", format!("{parts}u")));
        marks.push(("PER", format!("{per}u")));
        marks.push(("LINK", name.to_owned()));
        let text = marks.iter().fold(text.to_owned(), |text, (mark, value)| text.replace(mark, value));
        replace_word(&text, "N", &format!("{n}u"))
    }

    /// `chain(first, lane)`: calls the links in order. A series of calls of one function that alternate between two sets
    /// of places is a loop.
    fn chain(&self) -> String {
        let mut text = "fn chain(first: u32, lane: u32) {\n".to_owned();
        let mut at = 0;
        while at < self.calls.len() {
            let (function, _) = &self.calls[at];
            let alike = |&i: &usize| {
                let (other, places) = &self.calls[i];
                let before = if i >= at + 2 { &self.calls[i - 2].1 } else { places };
                other == function && places == before
            };
            let count = (at..self.calls.len()).take_while(alike).count();
            let call = |places: &str| format!("link{function}_run(first, lane{places});");
            // All values of a link are complete before the next one reads them.
            if count >= 4 {
                let (even, odd) = (&self.calls[at].1, &self.calls[at + 1].1);
                let place = |(a, b): (&usize, &usize)| match a == b {
                    true => format!(", {a}u"),
                    false => format!(", select({a}u, {b}u, (i & 1u) == 1u)"),
                };
                let places: String = even.iter().zip(odd).map(place).collect();
                let _ = writeln!(text, "    for (var i = 0u; i < {count}u; i++) {{\n        {}", call(&places));
                text.push_str("        workgroupBarrier();\n    }\n");
                at += count;
                continue;
            }
            let places: String = self.calls[at].1.iter().map(|place| format!(", {place}u")).collect();
            let _ = writeln!(text, "    {}", call(&places));
            if at + 1 < self.calls.len() {
                text.push_str("    workgroupBarrier();\n");
            }
            at += 1;
        }
        text + "}\n"
    }
}

/// A weight or bias of a norm at position `p`.
fn weight(operand: &Operand) -> String {
    match operand.source {
        Source::Slot(input) => {
            let name = NAMES[input as usize];
            let stride = operand.layout.strides.last().copied().unwrap_or(1);
            format!("load_{name}(params.{name}_offset{})", plus("p", stride))
        }
        // Weights are inputs of the chain.
        Source::Scratch(_) | Source::Constant(_) | Source::Iota | Source::Fused => "1.0".to_owned(),
    }
}

/// ` + place * stride`, as short as possible. Strides are wrapping words, so negative ones work too.
pub(super) fn plus(place: &str, stride: isize) -> String {
    match stride {
        0 => String::new(),
        1 => format!(" + {place}"),
        _ => format!(" + {place} * {}u", stride as i32 as u32),
    }
}

/// The coordinates of number `c` of a row along all axes but the first.
fn coordinates(shape: &Shape, c: &str) -> Vec<String> {
    let axes = &shape[1..];
    (0..axes.len())
        .map(|axis| {
            let inside: usize = axes[axis + 1..].iter().product();
            let place = if inside > 1 { format!("({c} / {inside}u)") } else { format!("({c})") };
            if axis == 0 { place } else { format!("({place} % {}u)", axes[axis]) }
        })
        .collect()
}

/// Whether another link with the same text would read the same parameters.
fn shareable(link: &Step) -> bool {
    let plain = |program: &Program| {
        program.exprs.iter().all(|expr| match expr {
            Expr::Scalar(..) => false,
            Expr::Const(bits, Class::Float) => f32::from_bits(*bits).is_finite(),
            _ => true,
        })
    };
    let fused = link.epilogue.iter().map(|fused| &fused.map.program);
    let own = link.kernel.as_map().map(|map| &map.program);
    link.scalars.is_empty() && fused.chain(own).all(plain)
}

/// Replaces a mark of one letter where it is a word.
fn replace_word(text: &str, word: &str, value: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, after) = (rest[..at].chars().next_back(), rest[at + word.len()..].chars().next());
        let whole = !before.is_some_and(is_part) && !after.is_some_and(is_part);
        out.push_str(&rest[..at]);
        out.push_str(if whole { value } else { word });
        rest = &rest[at + word.len()..];
    }
    out + rest
}

/// The strides of the last two axes.
pub(super) fn last_two(layout: &Layout) -> [isize; 2] {
    match layout.strides[..] {
        [.., a, b] => [a, b],
        _ => [0, 0],
    }
}

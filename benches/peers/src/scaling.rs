//! How our own time grows: an encoder with more tokens, larger batches and more width, and small ops with their number.
//! If the marginal cost is constant down a table, growth is linear.

use bevy_tensor_compute::support::Backend;

use crate::arguments::Arguments;
use crate::measure::compare;
use crate::ours::Rig;
use crate::rows::Rows;
use crate::work::encoder::Encoder;
use crate::work::overhead::dependent_ops;
use crate::work::{Compute, Work};

/// One table: sizes, and the work at each size.
struct Table {
    unit: &'static str,
    work: Vec<(usize, Compute)>,
}

pub fn run(arguments: &Arguments, rows: &mut Rows) {
    for &backend in &arguments.backends {
        let mut rig = Rig::new(backend, true);
        for table in tables() {
            print(table, backend, &mut rig, arguments, rows);
        }
    }
}

fn print(table: Table, backend: Backend, rig: &mut Rig, arguments: &Arguments, rows: &mut Rows) {
    let Table { unit, work } = table;
    let work: Vec<_> = work.into_iter().filter(|(_, work)| arguments.wants(Work::name(work))).collect();
    if work.is_empty() {
        return;
    }
    println!(
        "\n{:<34} {:>7} {:>10} {:>10} {:>14} {:>14} {:>8}",
        format!("by {unit}"),
        "backend",
        "launches",
        "ms",
        format!("µs a {unit}"),
        "marginal",
        "GFLOP/s"
    );
    let mut before: Option<(usize, f64)> = None;
    for (count, work) in work {
        let name = Work::name(&work).to_owned();
        let outcome = compare(work.ours(rig).as_mut(), Vec::new(), (0.0, 0.0), arguments.effort);
        let ms = outcome.ours_ms;
        let or_dash = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
        let marginal = before.map(|(fewer, less)| (ms - less) * 1e3 / (count - fewer) as f64);
        println!(
            "{name:<34} {:>7} {:>10} {ms:>10.3} {:>14.2} {:>14} {:>8}",
            backend.to_string(),
            or_dash(outcome.launches.map(|launches| launches as f64), 0),
            ms * 1e3 / count as f64,
            or_dash(marginal, 2),
            or_dash(Work::flops(&work).map(|flops| flops / ms / 1e6), 2),
        );
        before = Some((count, ms));
        rows.keep_ours(&name, backend, ms);
    }
}

fn tables() -> Vec<Table> {
    let encoder = |width: usize, tokens: usize, batch: usize| {
        Encoder { layers: 6, width, heads: width / 32, hidden: 4 * width, tokens, batch }
            .work(format!("encoder 6×{width}, {batch}×{tokens} tokens"))
    };
    let by = |unit, sizes: &[usize], make: &dyn Fn(usize) -> Compute| Table {
        unit,
        work: sizes.iter().map(|&size| (size, make(size))).collect(),
    };
    vec![
        by("token", &[8, 16, 32, 64, 128, 256], &|tokens| encoder(384, tokens, 1)),
        by("batch", &[1, 2, 4, 8], &|batch| encoder(384, 16, batch)),
        by("column of width", &[128, 256, 384, 512], &|width| encoder(width, 32, 1)),
        by("op", &[10, 100, 1000], &dependent_ops),
    ]
}

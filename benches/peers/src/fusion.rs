//! Fused against unfused plans: two apps in one run that differ only in `PipelineSettings::fuse`. In the rows, ours is
//! fused and the rival is not.

use std::rc::Rc;

use bevy::prelude::Entity;
use bevy_tensor_compute::error::OpResult;
use bevy_tensor_compute::ops::{TensorCommands, TensorValue};

use crate::arguments::Arguments;
use crate::array::Array;
use crate::measure::compare;
use crate::ours::{End, Ours, Record, Rig};
use crate::rows::Rows;

/// Chains to fuse, and the gains that other systems report.
struct Case {
    name: String,
    claim: f64,
    inputs: Vec<Array>,
    record: Record,
    tolerance: (f32, f32),
}

impl Case {
    fn new(
        name: String,
        claim: f64,
        inputs: Vec<Array>,
        record: impl for<'a> Fn(&'a TensorCommands, &[Entity]) -> OpResult<TensorValue<'a>> + 'static,
    ) -> Self {
        Self { name, claim, inputs, record: Rc::new(record), tolerance: (1e-5, 1e-5) }
    }
}

pub fn run(arguments: &Arguments, rows: &mut Rows) {
    Rows::print_head();
    for &backend in &arguments.backends {
        let (mut fused, mut unfused) = (Rig::new(backend, true), Rig::new(backend, false));
        for case in cases().into_iter().filter(|case| arguments.wants(&case.name)) {
            let Case { name, claim, inputs, record, tolerance } = case;
            let mut ours = Ours::new(&mut fused, &inputs, record.clone(), End::Corner);
            let rival = Ours::new(&mut unfused, &inputs, record, End::Corner).named("unfused");
            let outcome = compare(&mut ours, vec![Box::new(rival)], tolerance, arguments.effort);
            rows.add(&format!("{name} (claim {claim}×)"), backend, None, outcome);
        }
    }
}

fn cases() -> Vec<Case> {
    let mut list = Vec::new();
    // Square, and with an inner size so small that writing the result dominates.
    for [m, k, n] in [[64, 64, 64], [256, 256, 256], [1024, 16, 1024]] {
        let inputs = vec![Array::uniform(20, 1.0, &[m, k]), Array::uniform(21, 1.0, &[k, n])];
        let case = Case::new(format!("matmul+relu {m}×{k}×{n}"), 1.87, inputs, |ops, x| {
            let product = ops.matmul(x[0], x[1])?;
            ops.relu(product)
        });
        list.push(Case { tolerance: (1e-4, 1e-4), ..case });
    }
    for (size, n) in [("4 K", 1 << 12), ("64 K", 1 << 16), ("1 M", 1 << 20)] {
        let inputs = || (22..25).map(|seed| Array::uniform(seed, 1.0, &[n])).collect::<Vec<_>>();
        list.push(Case::new(format!("add+mul {size}"), 2.23, inputs(), |ops, x| {
            let sum = ops.add(x[0], x[1])?;
            ops.mul(sum, x[2])
        }));
        list.push(Case::new(format!("add+relu {size}"), 2.13, inputs(), |ops, x| {
            let sum = ops.add(x[0], x[1])?;
            ops.relu(sum)
        }));
        list.push(Case::new(format!("mul+add+sigmoid {size}"), 2.98, inputs(), |ops, x| {
            let product = ops.mul(x[0], x[1])?;
            let sum = ops.add(product, x[2])?;
            ops.sigmoid(sum)
        }));
    }
    list
}

//! The table and its JSON.

use bevy_tensor_compute::support::Backend;
use serde_json::{Value, json};

use crate::measure::{Outcome, Versus};

/// The results so far.
#[derive(Default)]
pub struct Rows(Vec<Value>);

impl Rows {
    pub fn print_head() {
        println!(
            "{:<34} {:>7} {:>10} {:>17} {:>8} {:>8}   {:<14} {:>10} {:>7} {:>7}  equal",
            "work", "backend", "ours ms", "(quartiles)", "launches", "GFLOP/s", "rival", "rival ms", "ratio", "spread"
        );
    }

    /// Prints and stores the rows of one comparison.
    pub fn add(&mut self, work: &str, backend: Backend, flops: Option<f64>, outcome: Outcome) {
        let Outcome { ours_ms, ours_quartiles: (low, high), launches, rivals } = outcome;
        let backend = backend.to_string();
        let quartiles = format!("({low:.3}–{high:.3})");
        let launches = launches.map_or("-".to_owned(), |count| count.to_string());
        let rate = flops.map_or("-".to_owned(), |flops| format!("{:.2}", flops / ours_ms / 1e6));
        let ours = format!("{work:<34} {backend:>7} {ours_ms:>10.3} {quartiles:>17} {launches:>8} {rate:>8}");
        if rivals.is_empty() {
            println!("{ours}");
            self.keep(work, &backend, ours_ms, Value::Null, [const { Value::Null }; 4]);
        }
        for Versus { rival, measured } in rivals {
            let Some(versus) = measured else {
                println!("{ours}   {rival:<14} failed");
                self.keep(work, &backend, ours_ms, json!(rival), [const { Value::Null }; 4]);
                continue;
            };
            let equal =
                if versus.equal { "yes".to_owned() } else { format!("NO: {:.1}× the tolerance", versus.error) };
            println!(
                "{ours}   {rival:<14} {:>10.3} {:>7.2} {:>7.2}  {equal}",
                versus.rival_ms, versus.ratio, versus.spread
            );
            let figures = [json!(versus.rival_ms), json!(versus.ratio), json!(versus.spread), json!(versus.equal)];
            self.keep(work, &backend, ours_ms, json!(rival), figures);
        }
    }

    /// Stores a result without rivals, without printing it.
    pub fn keep_ours(&mut self, work: &str, backend: Backend, ours_ms: f64) {
        self.keep(work, &backend.to_string(), ours_ms, Value::Null, [const { Value::Null }; 4]);
    }

    fn keep(&mut self, work: &str, backend: &str, ours_ms: f64, rival: Value, figures: [Value; 4]) {
        let [rival_ms, ratio, spread, equal] = figures;
        self.0.push(json!({
            "work": work,
            "backend": backend,
            "ours_ms": ours_ms,
            "rival": rival,
            "rival_ms": rival_ms,
            "ratio": ratio,
            "spread": spread,
            "equal": equal,
        }));
    }

    pub fn json(&self) -> String {
        format!("{:#}\n", Value::Array(self.0.clone()))
    }
}

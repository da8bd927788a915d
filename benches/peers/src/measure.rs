//! Turns, rounds and medians.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Maximum number of repetitions per turn.
pub const MOST: usize = 256;

/// Pause before a turn. Threads of the previous contestant spin for a while, on cores that the next one needs.
const PAUSE: Duration = Duration::from_millis(40);

/// One side of a comparison, set up for one piece of work.
pub trait Contestant {
    fn name(&self) -> String;

    /// Runs the work `repetitions` times and waits until all of it is done. Returns the elapsed time.
    fn run(&mut self, repetitions: usize) -> Duration;

    /// The result of the last run.
    fn result(&mut self) -> Vec<f32>;

    /// Maximum number of repetitions per run.
    fn most(&self) -> usize {
        MOST
    }

    /// Kernels launched per repetition, if known.
    fn launches(&self) -> Option<u64> {
        None
    }
}

/// How much time to spend.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Minimum duration of a turn.
    turn: Duration,
    /// Maximum number of rounds.
    rounds: usize,
    /// Maximum duration of all rounds of one comparison. There are always at least [`Effort::FEWEST`] rounds.
    budget: Duration,
}

impl Effort {
    pub const FULL: Self = Self { turn: Duration::from_millis(60), rounds: 11, budget: Duration::from_secs(5) };
    pub const QUICK: Self = Self { turn: Duration::from_millis(25), rounds: 5, budget: Duration::from_secs(2) };
    const FEWEST: usize = 3;
}

/// Times of one repetition, one per round.
struct Times(Vec<f64>);

/// The result of a comparison.
pub struct Outcome {
    pub ours_ms: f64,
    /// Quartiles of our own times.
    pub ours_quartiles: (f64, f64),
    pub launches: Option<u64>,
    pub rivals: Vec<Versus>,
}

/// Ours against one rival.
pub struct Versus {
    pub rival: String,
    /// `None` if the rival failed.
    pub measured: Option<Measured>,
}

pub struct Measured {
    pub rival_ms: f64,
    /// `rival_ms / ours_ms`.
    pub ratio: f64,
    /// Interquartile range of the ratios of the rounds.
    pub spread: f64,
    pub equal: bool,
    /// The largest difference of the results, relative to the tolerance.
    pub error: f64,
}

/// A contestant and its number of repetitions.
struct Entry<'a> {
    contestant: &'a mut dyn Contestant,
    repetitions: usize,
    times: Times,
}

impl<'a> Entry<'a> {
    fn new(contestant: &'a mut dyn Contestant) -> Self {
        Self { contestant, repetitions: 1, times: Times(Vec::new()) }
    }

    /// Warms up and determines how many repetitions fill a turn.
    fn prepare(&mut self, effort: Effort) {
        // The first runs compile, plan and tune.
        for _ in 0..3 {
            self.contestant.run(1);
        }
        let most = self.contestant.most();
        loop {
            let time = self.contestant.run(self.repetitions);
            if time >= effort.turn || self.repetitions == most {
                break;
            }
            // The share of the fixed cost of a frame shrinks with more repetitions, so the first guess is low and the
            // loop continues.
            let guess = self.repetitions as f64 * effort.turn.as_secs_f64() / time.as_secs_f64().max(1e-6);
            self.repetitions = (guess as usize).clamp(self.repetitions + 1, most);
            // The first run with this number needs a new plan, which must not affect the next guess.
            self.contestant.run(self.repetitions);
        }
    }

    fn turn(&mut self) -> Duration {
        std::thread::sleep(PAUSE);
        let time = self.contestant.run(self.repetitions);
        self.times.0.push(time.as_secs_f64() * 1e3 / self.repetitions as f64);
        time
    }
}

/// Alternates between ours and all rivals. A rival that panics is reported as failed and excluded.
pub fn compare(
    ours: &mut dyn Contestant,
    mut rivals: Vec<Box<dyn Contestant + '_>>,
    tolerance: (f32, f32),
    effort: Effort,
) -> Outcome {
    let mut entry = Entry::new(ours);
    entry.prepare(effort);
    let expected = entry.contestant.result();
    let launches = entry.contestant.launches();
    let mut versus = Vec::new();
    let mut entries = Vec::new();
    for rival in &mut rivals {
        let name = rival.name();
        let mut rival = Entry::new(rival.as_mut());
        let error = catch_unwind(AssertUnwindSafe(|| {
            rival.prepare(effort);
            largest_error(&rival.contestant.result(), &expected, tolerance)
        }));
        match error {
            Ok(error) => entries.push((name, rival, error)),
            Err(_) => versus.push(Versus { rival: name, measured: None }),
        }
    }
    let start = Instant::now();
    for round in 0..effort.rounds {
        if round >= Effort::FEWEST && start.elapsed() > effort.budget {
            break;
        }
        entry.turn();
        for (_, rival, _) in &mut entries {
            rival.turn();
        }
    }
    let ours_ms = entry.times.median();
    for (rival, times, error) in entries.into_iter().map(|(name, entry, error)| (name, entry.times, error)) {
        let rival_ms = times.median();
        let ratios = Times(times.0.iter().zip(&entry.times.0).map(|(rival, ours)| rival / ours).collect());
        let (low, high) = ratios.quartiles();
        let measured = Measured { rival_ms, ratio: rival_ms / ours_ms, spread: high - low, equal: error <= 1.0, error };
        versus.push(Versus { rival, measured: Some(measured) });
    }
    Outcome { ours_ms, ours_quartiles: entry.times.quartiles(), launches, rivals: versus }
}

impl Times {
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        let at = share * last as f64;
        let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
        below + (above - below) * at.fract()
    }

    fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    fn quartiles(&self) -> (f64, f64) {
        (self.quantile(0.25), self.quantile(0.75))
    }
}

/// The largest difference between two results, relative to `absolute + relative · |expected|`. Infinite if they cannot
/// be compared.
fn largest_error(actual: &[f32], expected: &[f32], (absolute, relative): (f32, f32)) -> f64 {
    if actual.len() != expected.len() {
        return f64::INFINITY;
    }
    let share = |(&a, &e): (&f32, &f32)| {
        if a == e {
            return 0.0;
        }
        let share = f64::from((a - e).abs()) / f64::from(absolute + relative * e.abs());
        if share.is_nan() { f64::INFINITY } else { share }
    };
    actual.iter().zip(expected).map(share).fold(0.0, f64::max)
}

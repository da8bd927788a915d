//! Mutates inputs and runs a target on them. It needs no instrumentation and no nightly compiler: inputs whose answer is new are kept and mutated further.

use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::memory;
use crate::targets::Target;

/// An input that takes longer is a hang.
const HANG: Duration = Duration::from_secs(60);
/// Bytes that an input may make a target allocate, besides [`PER_BYTE`] for each byte of it.
const ALLOCATION: usize = 256 << 20;
const PER_BYTE: usize = 1 << 12;
/// Inputs kept for further mutation.
const POOL: usize = 4096;

/// What a run found.
#[derive(Default)]
pub struct Figures {
    pub inputs: u64,
    pub accepted: u64,
    pub kinds: usize,
    pub panics: u64,
    pub runaway: u64,
    pub longest: Duration,
    /// The most bytes allocated by one input.
    pub peak: usize,
    pub seconds: f64,
}

/// A small generator of random numbers (splitmix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        if n == 0 { 0 } else { (self.next() % n as u64) as usize }
    }
}

/// Numbers at which arithmetic breaks.
const NUMBERS: [u64; 20] = [
    0,
    1,
    2,
    7,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_fffe,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x4000_0000_0000_0000,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_ffff_fff8,
    0xffff_ffff_ffff_fffe,
    0xffff_ffff_ffff_ffff,
];

/// Changes an input in one to eight places.
fn mutate(input: &[u8], pool: &[Vec<u8>], target: &Target, random: &mut Random) -> Vec<u8> {
    let mut bytes = input.to_vec();
    let places = random.below(4);
    for _ in 0..1 + random.below(1 << places) {
        let at = random.below(bytes.len() + 1);
        let most = random.below(7);
        let span = 1 + random.below(1 << most);
        let end = (at + span).min(bytes.len());
        match random.below(11) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => drop(bytes.drain(at..end)),
            3 => {
                let copy = bytes[at..end].to_vec();
                let to = random.below(bytes.len() + 1);
                drop(bytes.splice(to..to, copy));
            }
            4 if !target.words.is_empty() => {
                let word = target.words[random.below(target.words.len())].as_bytes();
                let over = if random.below(2) == 0 { at } else { (at + word.len()).min(bytes.len()) };
                drop(bytes.splice(at..over, word.iter().copied()));
            }
            5 => {
                let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                let width = 1 << random.below(4);
                let over = (at + width).min(bytes.len());
                drop(bytes.splice(at..over, number[..width].iter().copied()));
            }
            6 => {
                // A number in a text.
                let digits = |b: &u8| b.is_ascii_digit();
                if let Some(from) = bytes[at..].iter().position(digits).map(|i| at + i) {
                    let to = from + bytes[from..].iter().take_while(|b| digits(b)).count();
                    let number = NUMBERS[random.below(NUMBERS.len())].wrapping_add(random.below(3) as u64);
                    drop(bytes.splice(from..to, number.to_string().bytes()));
                }
            }
            7 => {
                let other = &pool[random.below(pool.len())];
                let from = random.below(other.len() + 1);
                let part = &other[from..(from + span * 4).min(other.len())];
                drop(bytes.splice(at..end, part.iter().copied()));
            }
            8 => bytes.truncate(at.max(1)),
            9 => bytes.extend((0..span).map(|_| random.next() as u8)),
            _ => drop(bytes.splice(at..at, [random.next() as u8])),
        }
        bytes.truncate(target.longest);
    }
    bytes
}

/// The message of the last panic of any thread, and how many there were.
static PANIC: Mutex<String> = Mutex::new(String::new());
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Whether an input is running.
static INSIDE: AtomicBool = AtomicBool::new(false);

/// Notes panics of inputs instead of printing them.
pub fn note_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if !INSIDE.load(Ordering::Relaxed) {
            print(info);
        }
        PANICS.fetch_add(1, Ordering::Relaxed);
        if let Ok(mut text) = PANIC.lock() {
            *text = info.to_string();
        }
    }));
}

/// The input that is running: since when, and where it is kept.
struct Watch {
    start: Instant,
    running: AtomicU64,
}

/// Ends the process if an input takes too long: a hanging thread cannot be stopped.
fn watch(name: &'static str, file: PathBuf) -> &'static Watch {
    let watch: &'static Watch = Box::leak(Box::new(Watch { start: Instant::now(), running: AtomicU64::new(0) }));
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(Duration::from_millis(500));
            let since = watch.running.load(Ordering::Relaxed);
            if since != 0 && watch.start.elapsed() > Duration::from_millis(since) + HANG {
                eprintln!("{name}: an input hangs: {}", file.display());
                std::process::exit(3);
            }
        }
    });
    watch
}

/// How long to run.
pub struct Limits {
    pub time: Duration,
    pub inputs: u64,
    pub seed: u64,
}

/// Runs a target until a limit is reached. `found` is the folder for inputs that did harm.
pub fn run(target: &'static Target, corpus: Vec<Vec<u8>>, found: &Path, limits: &Limits) -> Figures {
    let mut random =
        Random::new(limits.seed ^ target.name.bytes().fold(0, |hash: u64, b| hash.rotate_left(5) ^ u64::from(b)));
    let mut figures = Figures::default();
    let mut kinds = HashSet::new();
    let mut places = HashSet::new();
    let mut pool = corpus.clone();
    pool.push(Vec::new());
    let mut first = corpus.into_iter();
    std::fs::create_dir_all(found).expect("a folder for what is found");
    // What runs is on the disk before it runs, so that an abort leaves it behind.
    let current = found.join(format!("{}-running", target.name));
    let running = std::fs::File::create(&current).expect("a file for the input that runs");
    let watch = watch(target.name, current.clone());
    let mut run = (target.make)();
    let start = Instant::now();
    while start.elapsed() < limits.time && figures.inputs < limits.inputs {
        let input = first.next().unwrap_or_else(|| {
            let base = random.below(pool.len());
            mutate(&pool[base].clone(), &pool, target, &mut random)
        });
        running.set_len(0).and_then(|()| running.write_all_at(&input, 0)).expect("the disk has room");
        let (panics, before, begun) = (PANICS.load(Ordering::Relaxed), memory::begin(), Instant::now());
        watch.running.store(watch.start.elapsed().as_millis() as u64 + 1, Ordering::Relaxed);
        INSIDE.store(true, Ordering::Relaxed);
        let answer = catch_unwind(AssertUnwindSafe(|| run(&input)));
        INSIDE.store(false, Ordering::Relaxed);
        watch.running.store(0, Ordering::Relaxed);
        let (took, bytes) = (begun.elapsed(), memory::peak().saturating_sub(before));
        figures.inputs += 1;
        figures.longest = figures.longest.max(took);
        figures.peak = figures.peak.max(bytes);
        let mut keep = |what: &str, text: String| {
            // One input for each place in the code.
            if places.len() < 100 && places.insert(text.lines().next().unwrap_or_default().to_owned()) {
                let path = found.join(format!("{}-{what}-{}", target.name, places.len()));
                std::fs::write(&path, &input).expect("the disk has room");
                eprintln!("{}: {what}: {}\n{text}", target.name, path.display());
            }
        };
        let threads = PANICS.load(Ordering::Relaxed) - panics;
        if answer.is_err() || (threads > 0 && !target.guards) {
            figures.panics += 1;
            keep("panic", PANIC.lock().map(|text| text.clone()).unwrap_or_default());
            // What panicked may be broken.
            run = (target.make)();
        }
        if bytes > ALLOCATION + PER_BYTE * input.len() {
            figures.runaway += 1;
            keep("runaway", format!("{} MiB for {} bytes", bytes >> 20, input.len()));
        }
        if let Ok(answer) = answer {
            figures.accepted += u64::from(answer.accepted);
            if kinds.insert(answer.kind) && pool.len() < POOL {
                pool.push(input);
            }
        }
    }
    figures.kinds = kinds.len();
    figures.seconds = start.elapsed().as_secs_f64();
    let _ = std::fs::remove_file(current);
    figures
}

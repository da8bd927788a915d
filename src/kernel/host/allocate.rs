//! Memory of the CPU backend, or none: a request that the machine cannot serve is an answer, not the end of the process.

/// Requests of at least this many bytes ask the system first. Smaller ones only fail if nothing works any more.
const LARGE: u64 = 1 << 28;

/// This many zeros, or `None` if there is no memory for them.
pub(crate) fn zeroed(words: usize) -> Option<Vec<u32>> {
    if !has_memory_for((words as u64).checked_mul(4)?) {
        return None;
    }
    // `vec!` gets zeroed pages from the system, which costs nothing until they are used, but it cannot fail. So this asks
    // for the same memory first.
    let mut probe = Vec::<u32>::new();
    probe.try_reserve_exact(words).ok()?;
    drop(probe);
    Some(vec![0; words])
}

/// Whether the system is likely to have this many bytes.
pub(crate) fn has_memory_for(bytes: u64) -> bool {
    bytes < LARGE || available().is_none_or(|available| bytes <= available)
}

/// Bytes that the system can give without taking them from others, if it tells. Linux promises more than it has, and
/// ends processes that use what was promised.
fn available() -> Option<u64> {
    if !cfg!(target_os = "linux") {
        return None;
    }
    let memory = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let machine = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.saturating_mul(1 << 10);
    let group = |file: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse::<u64>().ok();
    let container = group("memory.max").map(|most| most.saturating_sub(group("memory.current").unwrap_or(0)));
    Some(container.map_or(machine, |container| container.min(machine)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_no_machine_has_is_refused() {
        assert_eq!(zeroed(3), Some(vec![0; 3]));
        assert_eq!(zeroed(0), Some(Vec::new()));
        for words in [usize::MAX, usize::MAX / 8, 1 << 50] {
            assert_eq!(zeroed(words), None);
        }
    }

    #[test]
    fn more_than_is_available_is_refused_before_it_is_used() {
        if let Some(available) = available() {
            assert_eq!(zeroed((available / 4) as usize + (1 << 28)), None);
        }
    }
}

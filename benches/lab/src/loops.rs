//! Finds the hottest loop in machine code and counts its instructions.

/// The hottest loop of a kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HotLoop {
    pub instructions: usize,
    /// Multiply-adds and dot products. A packed instruction counts once.
    pub fma: usize,
    /// Loads and stores of buffers.
    pub memory: usize,
    /// Accesses to workgroup memory.
    pub shared: usize,
    /// Waits for memory.
    pub waits: usize,
}

impl HotLoop {
    /// The share of multiply-adds, from 0 to 1.
    pub fn share(&self) -> f64 {
        self.fma as f64 / self.instructions.max(1) as f64
    }
}

/// One line of code.
#[derive(Debug, PartialEq, Eq)]
enum Line<'a> {
    Label(&'a str),
    /// The instruction, and its operands.
    Instruction(&'a str, &'a str),
}

fn lines(assembly: &str) -> impl Iterator<Item = Line<'_>> {
    assembly.lines().filter_map(|line| {
        // The encoding follows the semicolon.
        let line = line.split([';', '/']).next().unwrap_or_default().trim();
        if let Some(label) = line.strip_suffix(':') {
            return (!label.contains(' ')).then_some(Line::Label(label));
        }
        let (name, operands) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let is_instruction = ["s_", "v_", "ds_", "buffer_", "global_", "scratch_", "flat_", "image_", "exp"];
        is_instruction.iter().any(|start| name.starts_with(start)).then_some(Line::Instruction(name, operands.trim()))
    })
}

/// The innermost loop with the most multiply-adds, or the longest one if none has any. `None` without a loop.
///
/// The code does not tell how often a loop runs. Inner loops are assumed to be hotter than outer ones.
pub fn hottest(assembly: &str) -> Option<HotLoop> {
    let lines: Vec<Line> = lines(assembly).collect();
    let place = |label: &str| lines.iter().position(|line| *line == Line::Label(label));
    // A loop is the code between a label and a jump back to it.
    let jumps = lines.iter().enumerate().filter_map(|(end, line)| match line {
        Line::Instruction(name, target) if name.contains("branch") => {
            let start = place(target.split(',').next_back()?.trim())?;
            (start < end).then_some((start, end))
        }
        _ => None,
    });
    let loops: Vec<(usize, usize)> = jumps.collect();
    let is_inner = |&&(start, end): &&(usize, usize)| {
        !loops.iter().any(|&(s, e)| (s, e) != (start, end) && s >= start && e <= end)
    };
    let inner = loops.iter().filter(is_inner).map(|&(start, end)| count(&lines[start..=end]));
    inner.max_by_key(|found| (found.fma, found.instructions))
}

fn count(lines: &[Line]) -> HotLoop {
    let mut found = HotLoop::default();
    for line in lines {
        let Line::Instruction(name, _) = line else { continue };
        found.instructions += 1;
        let is = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
        // RDNA 3 encodes two in one instruction: `v_dual_fmac_f32 … :: v_dual_fmac_f32 …`.
        found.fma +=
            usize::from(is(&["v_fma", "v_mac", "v_mad", "v_pk_fma", "v_pk_mad", "v_dot", "v_dual_fma", "v_wmma"]));
        found.memory +=
            usize::from(is(&["buffer_", "global_", "scratch_", "flat_", "image_", "s_buffer_load", "s_load"]));
        found.shared += usize::from(is(&["ds_"]));
        found.waits += usize::from(is(&["s_waitcnt"]));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = "
BB0:
	s_mov_b32 s0, 0                                             ; be800380
BB1:
	v_mov_b32_e32 v1, 0                                         ; 7e020280
BB2:
	ds_read_b128 v[2:5], v1                                     ; dbfc0000 02000001
	s_waitcnt lgkmcnt(0)                                        ; bf8cc07f
	v_fmac_f32_e32 v6, v2, v3                                   ; 560c0702
	v_fmac_f32_e32 v7, v2, v4                                   ; 560e0902
	s_cbranch_scc1 BB2                                          ; bf85fffa
BB3:
	buffer_store_dword v6, off, s[0:3], 0                       ; e0700000 80000600
	s_cbranch_scc1 BB1                                          ; bf85fff0
BB4:
	s_endpgm                                                    ; bf810000
";

    #[test]
    fn the_inner_loop_is_found_and_counted() {
        let found = hottest(CODE).expect("there are two loops");
        assert_eq!(found, HotLoop { instructions: 5, fma: 2, memory: 0, shared: 1, waits: 1 });
        assert_eq!(found.share(), 0.4);
    }

    #[test]
    fn code_without_a_loop_has_none() {
        assert_eq!(hottest("BB0:\n\ts_cbranch_scc1 BB1 ; bf85\nBB1:\n\ts_endpgm ; bf81\n"), None);
    }
}

//! Fourier transforms as data.

/// A discrete Fourier transform of lines, apart from the number and the length of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fourier {
    /// Points of the transform. Lines that are shorter continue with zeros.
    pub n: usize,
    pub input: FourierInput,
    pub output: FourierOutput,
    /// The inverse transform divides by `n`.
    pub inverse: bool,
    /// Transforms of each line: frame `i` begins at element `i · hop`.
    pub frames: usize,
    pub hop: usize,
    /// Elements of the line that a frame takes.
    pub frame: usize,
    /// Whether frames are multiplied by a window `[frame]`, the second input.
    pub window: bool,
}

/// What the lines are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FourierInput {
    /// Real numbers.
    Real,
    /// Pairs of real and imaginary parts.
    Complex,
    /// Pairs: the first half of a spectrum whose other half mirrors it.
    Half,
}

/// What is kept of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FourierOutput {
    /// All `n` pairs.
    Complex,
    /// The first `n / 2 + 1` pairs.
    Half,
    /// The `n` real parts.
    Real,
    /// The squared magnitudes of the first `n / 2 + 1` pairs.
    Power,
}

impl Fourier {
    /// Results of each transform. A pair counts once.
    pub(crate) fn results(&self) -> usize {
        match self.output {
            FourierOutput::Complex | FourierOutput::Real => self.n,
            FourierOutput::Half | FourierOutput::Power => self.n / 2 + 1,
        }
    }
}

//! `Display` of host data. The text is what NumPy prints for an array of the same values, with its default options.

use core::fmt;
use core::fmt::Write as _;

use half::{bf16, f16};

use super::TensorData;
use crate::ir::{DType, Shape};

/// Arrays with more elements than this are summarised.
const THRESHOLD: usize = 1000;
/// Elements shown at each end of a summarised axis.
const EDGE: usize = 3;
/// Lines are wrapped to this width.
const LINE_WIDTH: usize = 75;
/// The most digits after the point.
const PRECISION: usize = 8;

/// Prints the values as NumPy does: aligned in columns, at most 8 digits after the point, the edges only beyond 1000
/// elements. Quantised data is printed as the numbers that it stands for.
///
/// ```
/// # use bevy_tensor_compute::tensor::TensorData;
/// let data = TensorData::new(&[1.0f32, 2.5, -3.0, 0.25], [2, 2])?;
/// assert_eq!(data.to_string(), "[[ 1.    2.5 ]\n [-3.    0.25]]");
/// # Ok::<(), bevy_tensor_compute::error::TensorError>(())
/// ```
impl fmt::Display for TensorData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text(self))
    }
}

/// One element.
#[derive(Clone, Copy)]
enum Value {
    Bool(bool),
    Int(i64),
    /// A float, and the type that it was stored in.
    Float(f32, FloatType),
}

#[derive(Clone, Copy)]
enum FloatType {
    F32,
    F16,
    BF16,
}

/// The array as NumPy prints it.
fn text(data: &TensorData) -> String {
    let shape = data.shape();
    if shape.rank() == 0 {
        return scalar(value(data, 0));
    }
    if shape.elements() == 0 {
        return "[]".to_owned();
    }
    let summarise = shape.elements() > THRESHOLD;
    let mut shown = Vec::new();
    visit(shape, summarise, 0, 0, &mut |index| shown.push(value(data, index)));
    let mut printer = Printer { shape, summarise, words: words(&shown).into_iter() };
    printer.array(0, " ", LINE_WIDTH)
}

/// One element, by its row-major index.
fn value(data: &TensorData, index: usize) -> Value {
    if let Some(format) = data.dtype().block_format() {
        let mut block = vec![0.0; format.elements];
        format.dequantize(data.words(), index / format.elements, &mut block);
        return Value::Float(block[index % format.elements], FloatType::F32);
    }
    let bytes = data.bytes();
    match data.dtype() {
        DType::F16 => Value::Float(bytemuck::cast_slice::<_, f16>(bytes)[index].to_f32(), FloatType::F16),
        DType::BF16 => Value::Float(bytemuck::cast_slice::<_, bf16>(bytes)[index].to_f32(), FloatType::BF16),
        DType::I32 => Value::Int(bytemuck::cast_slice::<_, i32>(bytes)[index].into()),
        DType::U32 => Value::Int(bytemuck::cast_slice::<_, u32>(bytes)[index].into()),
        DType::I8 => Value::Int(bytemuck::cast_slice::<_, i8>(bytes)[index].into()),
        DType::U8 => Value::Int(bytes[index].into()),
        DType::Bool => Value::Bool(bytes[index] != 0),
        DType::F32 | DType::Q8_0 | DType::Q4_0 | DType::Q4_128 | DType::Gguf(_) => {
            Value::Float(bytemuck::cast_slice::<_, f32>(bytes)[index], FloatType::F32)
        }
    }
}

/// The indices of an axis that are shown before and after the dots. Without dots, all of them are in the second range.
fn shown_indices(size: usize, summarise: bool) -> (core::ops::Range<usize>, core::ops::Range<usize>) {
    if summarise && size > 2 * EDGE { (0..EDGE, size - EDGE..size) } else { (0..0, 0..size) }
}

/// Calls `visitor` with the row-major index of every element that is shown, in printing order.
fn visit(shape: &Shape, summarise: bool, axis: usize, base: usize, visitor: &mut impl FnMut(usize)) {
    if axis == shape.rank() {
        return visitor(base);
    }
    let (leading, trailing) = shown_indices(shape[axis], summarise);
    for index in leading.chain(trailing) {
        visit(shape, summarise, axis + 1, base * shape[axis] + index, visitor);
    }
}

/// Joins the words of the elements.
struct Printer<'a> {
    shape: &'a Shape,
    summarise: bool,
    words: std::vec::IntoIter<String>,
}

impl Printer<'_> {
    /// The sub-array from `axis` on. Lines after the first start with `indent`.
    fn array(&mut self, axis: usize, indent: &str, width: usize) -> String {
        let axes_left = self.shape.rank() - axis;
        let (leading, trailing) = shown_indices(self.shape[axis], self.summarise);
        let mut out = String::from("[");
        if axes_left == 1 {
            let mut line = Line { length: indent.len(), indent, width: width.saturating_sub(1) };
            let dots = (!leading.is_empty()).then(|| "...".to_owned());
            let words = self.words.by_ref();
            let leading: Vec<String> = words.take(leading.len()).collect();
            let trailing: Vec<String> = words.take(trailing.len()).collect();
            for (i, word) in leading.into_iter().chain(dots).chain(trailing).enumerate() {
                line.push(&mut out, &word, i > 0);
            }
        } else {
            let next_indent = format!("{indent} ");
            let separator = format!("{}{indent}", "\n".repeat(axes_left - 1));
            let dots = !leading.is_empty();
            for i in 0..leading.len() {
                if i > 0 {
                    out += &separator;
                }
                out += &self.array(axis + 1, &next_indent, width.saturating_sub(1));
            }
            if dots {
                let _ = write!(out, "{separator}...{separator}");
            }
            for i in 0..trailing.len() {
                if i > 0 {
                    out += &separator;
                }
                out += &self.array(axis + 1, &next_indent, width.saturating_sub(1));
            }
        }
        out.push(']');
        out
    }
}

/// The last line of a row.
struct Line<'a> {
    length: usize,
    indent: &'a str,
    width: usize,
}

impl Line<'_> {
    /// Adds a word, on a new line if it does not fit.
    fn push(&mut self, out: &mut String, word: &str, separate: bool) {
        self.length += usize::from(separate);
        if self.length + word.len() > self.width && self.length > self.indent.len() {
            out.truncate(out.trim_end().len());
            let _ = write!(out, "\n{}", self.indent);
            self.length = self.indent.len();
        } else if separate {
            out.push(' ');
        }
        out.push_str(word);
        self.length += word.len();
    }
}

/// The elements of an array as words, aligned in columns.
fn words(values: &[Value]) -> Vec<String> {
    let floats = Floats::new(values);
    let words: Vec<String> = values
        .iter()
        .map(|value| match *value {
            Value::Bool(truth) => (if truth { " True" } else { "False" }).to_owned(),
            Value::Int(number) => number.to_string(),
            Value::Float(number, of) => floats.word(number, of),
        })
        .collect();
    let width = words.iter().map(String::len).max().unwrap_or(0);
    words.into_iter().map(|word| format!("{word:>width$}")).collect()
}

/// The format of the floats of an array.
#[derive(Default)]
struct Floats {
    scientific: bool,
    /// The largest number of digits after the point. In scientific notation all elements have as many.
    fraction: usize,
}

impl Floats {
    fn new(values: &[Value]) -> Self {
        let finite = values.iter().filter_map(|value| match *value {
            Value::Float(number, of) if number.is_finite() => Some((number, of)),
            _ => None,
        });
        let (mut low, mut high, mut float) = (f32::INFINITY, 0.0f32, FloatType::F32);
        for (number, of) in finite.clone().filter(|(number, _)| *number != 0.0) {
            (low, high, float) = (low.min(number.abs()), high.max(number.abs()), of);
        }
        let scientific = high > 0.0 && (high >= float.cutoff() || low < 0.0001 || float.divide(high, low) > 1000.0);
        let fraction = finite
            .map(|(number, of)| {
                let text = if scientific { shortest(number, of) } else { positional(number, of) };
                let mantissa = text.split('e').next().unwrap_or_default();
                mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len())
            })
            .max();
        Self { scientific, fraction: fraction.unwrap_or(0) }
    }

    /// One element, not yet aligned to the right.
    fn word(&self, number: f32, of: FloatType) -> String {
        if number.is_nan() {
            return "nan".to_owned();
        }
        if number.is_infinite() {
            return (if number < 0.0 { "-inf" } else { "inf" }).to_owned();
        }
        if !self.scientific {
            let text = positional(number, of);
            let fraction = text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
            return format!("{text}{}", " ".repeat(self.fraction - fraction));
        }
        let (mut mantissa, mut exponent) = parts(number, of);
        let digits = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len());
        if digits < self.fraction {
            // NumPy adds digits of the exact value, not zeros.
            (mantissa, exponent) = split_exponent(&format!("{number:.precision$e}", precision = self.fraction));
        }
        let point = if mantissa.contains('.') { "" } else { "." };
        format!("{mantissa}{point}e{exponent:+03}")
    }
}

impl FloatType {
    /// Numbers from this size on get an exponent.
    fn cutoff(self) -> f32 {
        match self {
            Self::F32 => 1e6,
            Self::F16 | Self::BF16 => 1e3,
        }
    }

    /// A quotient, rounded to the type.
    fn divide(self, a: f32, b: f32) -> f32 {
        self.round(a / b)
    }

    /// The nearest number of the type.
    fn round(self, number: f32) -> f32 {
        match self {
            Self::F32 => number,
            Self::F16 => f16::from_f32(number).to_f32(),
            Self::BF16 => bf16::from_f32(number).to_f32(),
        }
    }
}

/// The shortest digits that parse to this number, as `d.ddde-5`. Ties go to the even digit.
fn shortest(number: f32, of: FloatType) -> String {
    match of {
        FloatType::F32 => {
            let text = format!("{number:e}");
            // Rust rounds ties away from zero.
            let digits = text.split('e').next().map_or(0, |mantissa| mantissa.trim_start_matches('-').len());
            let even = format!("{number:.precision$e}", precision = digits.saturating_sub(2));
            if even.parse() == Ok(number) { even } else { text }
        }
        // Five digits are enough for every f16, four for every bf16.
        FloatType::F16 | FloatType::BF16 => {
            (0..5).find_map(|digits| half_digits(number, digits, of)).unwrap_or_else(|| format!("{number:e}"))
        }
    }
}

/// A half with this many digits after the point, if the text parses to the same number.
fn half_digits(number: f32, digits: usize, of: FloatType) -> Option<String> {
    let returns = |text: &String| text.parse().is_ok_and(|parsed: f32| of.round(parsed) == number);
    let nearest = format!("{number:.digits$e}");
    if returns(&nearest) {
        return Some(nearest);
    }
    // Numbers are closer together below a power of two than above it, so the next text up may parse where the nearest
    // does not.
    let (_, exponent) = nearest.split_once('e')?;
    let step = 10f64.powi(exponent.parse::<i32>().ok()? - digits as i32);
    let up = nearest.parse::<f64>().ok()? + step.copysign(number.into());
    Some(format!("{up:.digits$e}")).filter(returns)
}

/// Mantissa and exponent of the shortest digits.
fn parts(number: f32, of: FloatType) -> (String, i32) {
    split_exponent(&shortest(number, of))
}

fn split_exponent(text: &str) -> (String, i32) {
    let (mantissa, exponent) = text.split_once('e').unwrap_or((text, "0"));
    (mantissa.to_owned(), exponent.parse().unwrap_or(0))
}

/// The shortest digits without an exponent, and without zeros after the point: `1.`, `0.25`.
fn unlimited(number: f32, of: FloatType) -> String {
    let (mantissa, exponent) = parts(number, of);
    let (sign, mantissa) = mantissa.strip_prefix('-').map_or(("", mantissa.as_str()), |rest| ("-", rest));
    let digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    let before = exponent + 1;
    if before <= 0 {
        format!("{sign}0.{}{digits}", "0".repeat(before.unsigned_abs() as usize)).trim_end_matches('0').to_owned()
    } else if let Some((whole, fraction)) = digits.split_at_checked(before as usize) {
        format!("{sign}{whole}.{fraction}")
    } else {
        format!("{sign}{digits:0<width$}.", width = before as usize)
    }
}

/// As [`unlimited`], rounded to [`PRECISION`] digits after the point.
fn positional(number: f32, of: FloatType) -> String {
    let text = unlimited(number, of);
    match text.split_once('.') {
        Some((_, fraction)) if fraction.len() > PRECISION => {
            format!("{number:.PRECISION$}").trim_end_matches('0').to_owned()
        }
        _ => text,
    }
}

/// The element of a rank-0 array, which NumPy prints as a number.
fn scalar(value: Value) -> String {
    let (number, of) = match value {
        Value::Bool(truth) => return (if truth { "True" } else { "False" }).to_owned(),
        Value::Int(number) => return number.to_string(),
        Value::Float(number, of) => (number, of),
    };
    if !number.is_finite() {
        return Floats::default().word(number, of);
    }
    // NumPy compares as f64 here: the f32 number 0.0001 is a little smaller.
    if number == 0.0 || (f64::from(number.abs()) >= 1e-4 && number.abs() < of.cutoff()) {
        let text = unlimited(number, of);
        return if text.ends_with('.') { text + "0" } else { text };
    }
    let (mantissa, exponent) = parts(number, of);
    format!("{mantissa}e{exponent:+03}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Element, Truth};

    fn print<T: Element>(values: &[T], shape: impl Into<Shape>) -> String {
        TensorData::new(values, shape).unwrap().to_string()
    }

    // Expected texts are what NumPy 2.4 prints. The code was compared with it on 387,669 arrays, every number of f16
    // among them.

    #[test]
    fn floats_have_the_shortest_digits_and_aligned_columns() {
        let rows = [1.0, 2.5, -3.0, 0.1, 20.0, 1.0 / 3.0];
        let expected = "[[ 1.          2.5        -3.        ]\n [ 0.1        20.          0.33333334]]";
        assert_eq!(print::<f32>(&rows, [2, 3]), expected);
        assert_eq!(print(&[0.1, 2.0, 1.0 / 3.0].map(f16::from_f32), [3]), "[0.1    2.     0.3333]");
        // Exactly halfway between two texts: the even one. Below a power of two: only one of them gives the number
        // back.
        assert_eq!(print::<f32>(&[0.001953125, 1.0], [2]), "[0.00195312 1.        ]");
        #[expect(clippy::excessive_precision, reason = "the exact value of the float, halfway between two texts")]
        let halfway = 203_143.625;
        assert_eq!(print::<f32>(&[halfway], [1]), "[203143.62]");
        assert_eq!(print(&[f16::from_f32(0.015625)], [1]), "[0.01563]");
        assert_eq!(print(&[0.1, 2.0, 1.0 / 3.0].map(bf16::from_f32), [3]), "[0.1   2.    0.334]");
    }

    #[test]
    fn very_large_very_small_and_far_apart_floats_have_exponents() {
        assert_eq!(print::<f32>(&[0.1, 1e-5, 12345.0], [3]), "[1.0000e-01 1.0000e-05 1.2345e+04]");
        assert_eq!(print::<f32>(&[1e6, 1e6], [2]), "[1.e+06 1.e+06]");
        assert_eq!(print::<f32>(&[999_999.9, 1e5], [2]), "[999999.9 100000. ]");
        assert_eq!(print(&[1.0, 1000.0].map(f16::from_f32), [2]), "[1.e+00 1.e+03]");
    }

    #[test]
    fn infinities_and_nans_are_aligned() {
        assert_eq!(print::<f32>(&[1.5, f32::NAN, f32::NEG_INFINITY], [3]), "[ 1.5  nan -inf]");
        assert_eq!(print::<f32>(&[1e-6, f32::NAN, f32::NEG_INFINITY, 3.0], [4]), "[1.e-06    nan   -inf 3.e+00]");
        assert_eq!(print::<f32>(&[-0.0, 0.0], [2]), "[-0.  0.]");
    }

    #[test]
    fn integers_and_truth_values_are_aligned() {
        assert_eq!(print(&[1i32, -20, 300], [3]), "[  1 -20 300]");
        assert_eq!(print(&[u32::MAX, 0], [2]), "[4294967295          0]");
        assert_eq!(print(&[0u8, 1, 2, 3, 4, 5, 6, 7], [2, 2, 2]), "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]");
        let truths = [true, false, true, true].map(Truth::from);
        assert_eq!(print(&truths, [2, 2]), "[[ True False]\n [ True  True]]");
    }

    #[test]
    fn scalars_look_like_numbers_and_empty_arrays_are_brackets() {
        let scalar = |value: f32| print(&[value], []);
        assert_eq!([1.0, -0.0, 1e-5, 1e6, 1e-4].map(scalar), ["1.0", "-0.0", "1e-05", "1e+06", "1e-04"]);
        assert_eq!([f32::NAN, f32::NEG_INFINITY, 16_777_216.0].map(scalar), ["nan", "-inf", "1.6777216e+07"]);
        assert_eq!(print(&[-5i32], []), "-5");
        assert_eq!(print(&[Truth::TRUE], []), "True");
        assert_eq!(print::<f32>(&[], [2, 0]), "[]");
    }

    #[test]
    fn long_rows_are_wrapped_and_large_arrays_summarised() {
        let tenths: Vec<f32> = (0..30).map(|i| i as f32 / 10.0).collect();
        let expected = "[0.  0.1 0.2 0.3 0.4 0.5 0.6 0.7 0.8 0.9 1.  1.1 1.2 1.3 1.4 1.5 1.6 1.7\n \
                        1.8 1.9 2.  2.1 2.2 2.3 2.4 2.5 2.6 2.7 2.8 2.9]";
        assert_eq!(print(&tenths, [30]), expected);
        let numbers: Vec<i32> = (0..1001).collect();
        assert_eq!(print(&numbers, [1001]), "[   0    1    2 ...  998  999 1000]");
        let numbers: Vec<f32> = (0..2000).map(|i| i as f32).collect();
        let expected = "[[0.000e+00 1.000e+00 2.000e+00 ... 9.970e+02 9.980e+02 9.990e+02]\n \
                        [1.000e+03 1.001e+03 1.002e+03 ... 1.997e+03 1.998e+03 1.999e+03]]";
        assert_eq!(print(&numbers, [2, 1000]), expected);
    }

    #[test]
    fn quantised_data_is_printed_as_its_numbers() {
        let values: Vec<f32> = (0..32).map(|i| i as f32 * 0.5).collect();
        let data = TensorData::quantized(DType::Q8_0, [1, 32], &values).unwrap();
        assert_eq!(data.to_string(), print(&data.to_f32(), [1, 32]));
    }
}

//! Formatting of figures for display.

use core::time::Duration;

/// Formats a size in bytes.
pub(super) fn bytes(n: u64) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", n as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", n as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", n as f64 / 1_073_741_824.0),
    }
}

/// Formats a duration with about three digits.
pub(super) fn time(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    match micros {
        ..10.0 => format!("{micros:.2} µs"),
        ..1e3 => format!("{micros:.0} µs"),
        ..1e4 => format!("{:.2} ms", micros / 1e3),
        ..1e6 => format!("{:.1} ms", micros / 1e3),
        ..60e6 => format!("{:.1} s", micros / 1e6),
        _ => format!("{:.0} min", micros / 60e6),
    }
}

/// Formats a duration, or `-` if it is unknown.
pub(super) fn known(value: Option<Duration>) -> String {
    value.map_or_else(|| "-".to_owned(), time)
}

/// Formats how long ago something happened.
pub(super) fn ago(now: Duration, then: Option<Duration>) -> String {
    let Some(then) = then else { return "never".to_owned() };
    match now.saturating_sub(then).as_secs_f64() {
        ..1.0 => "now".to_owned(),
        seconds @ ..90.0 => format!("{seconds:.0} s ago"),
        seconds => format!("{:.0} min ago", seconds / 60.0),
    }
}

/// Formats a count in groups of three digits.
pub(super) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push('\u{2009}');
        }
        out.push(digit);
    }
    out
}

/// Formats a tensor element in about ten characters.
pub(super) fn value(x: f64) -> String {
    let size = x.abs();
    if !x.is_finite() {
        return if x.is_nan() { "NaN".to_owned() } else { if x > 0.0 { "inf" } else { "-inf" }.to_owned() };
    }
    if x == x.trunc() && size < 1e9 {
        return format!("{x}");
    }
    if (1e-3..1e5).contains(&size) { format!("{x:.4}") } else { format!("{x:.3e}") }
}

/// Formats a shape, for example `[2, 3]`.
pub(super) fn shape(shape: &crate::tensor::Shape) -> String {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_well_at_every_size() {
        let sizes = [0, 1023, 1024, 1_572_864, 3 << 30].map(bytes);
        assert_eq!(sizes, ["0 B", "1023 B", "1.0 KiB", "1.5 MiB", "3.00 GiB"]);
    }

    #[test]
    fn times_read_well_at_every_length() {
        let times = [1_500u64, 25_000, 1_234_000, 45_600_000, 2_000_000_000, 180_000_000_000];
        let times = times.map(|nanos| time(Duration::from_nanos(nanos)));
        assert_eq!(times, ["1.50 µs", "25 µs", "1.23 ms", "45.6 ms", "2.0 s", "3 min"]);
        let seconds = Duration::from_secs;
        assert_eq!([ago(seconds(9), None), ago(seconds(9), Some(seconds(2)))], ["never", "7 s ago"]);
        assert_eq!([ago(seconds(200), Some(seconds(20))), known(None)], ["3 min ago", "-"]);
    }

    #[test]
    fn values_stay_short() {
        let values = [0.0, 3.0, 0.5, -12.25, 1e-9, 3.5e12, f64::NAN, f64::NEG_INFINITY, 4_294_967_295.0].map(value);
        let short = ["0", "3", "0.5000", "-12.2500", "1.000e-9", "3.500e12", "NaN", "-inf", "4.295e9"];
        assert_eq!(values, short);
        assert_eq!([count(7), count(1_234_567)], ["7".to_owned(), "1\u{2009}234\u{2009}567".to_owned()]);
    }
}

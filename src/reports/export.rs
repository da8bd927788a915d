//! A report as files.

use core::time::Duration;
use std::io;
use std::path::Path;

use serde_json::{Value, json};

use super::{FrameRow, TensorReport, TimedRow};
use crate::disk::replace_file;
use crate::ir::Backend;

/// The page: style, script, and a place for the report. It loads nothing, from nowhere.
const PAGE: &str = include_str!("page.html");
/// Where the report goes in the page.
const PLACE: &str = "REPORT_JSON";

impl TensorReport {
    /// All figures; times in nanoseconds, memory in bytes.
    pub fn to_json(&self) -> Value {
        json!({
            "adapter": self.adapter,
            "duration_ns": nanos(self.duration),
            "frames": self.frames,
            "launches": self.launches,
            "cpu_kernels": self.cpu_kernels,
            "readbacks": self.readbacks,
            "encode_ns": nanos(self.encode),
            "peak_device_bytes": self.peak_device_bytes,
            "evictions": self.evictions,
            "plans_built": self.plans_built,
            "plan_hits": self.plan_hits,
            "pipeline_hits": self.pipeline_hits,
            "pipeline_misses": self.pipeline_misses,
            "pipeline_hit_rate": self.hit_rate(),
            "compile_ns": nanos(self.compile),
            "compiled": self.compiled.iter().map(|row| json!({
                "kernel": row.kernel,
                "variant": row.variant,
                "compile_ns": nanos(row.compile),
            })).collect::<Vec<_>>(),
            "kernels": self.kernels.iter().map(|row| timed(row, "variant")).collect::<Vec<_>>(),
            "ops": self.ops.iter().map(|row| timed(row, "site")).collect::<Vec<_>>(),
            "models": self.models.iter().map(|model| json!({
                "name": model.name,
                "launches": model.launches,
                "total_ns": nanos(model.total),
                "peak_device_bytes": model.peak_device_bytes,
            })).collect::<Vec<_>>(),
            "timeline": self.timeline.iter().map(frame).collect::<Vec<_>>(),
            "memory": self.memory.iter().map(|(time, bytes)| json!([nanos(*time), bytes])).collect::<Vec<_>>(),
            "left_out_of_trace": self.left_out_of_trace,
        })
    }

    /// One page with charts and tables, which needs nothing but a browser.
    pub fn to_html(&self) -> String {
        // In a script, `<` could end it.
        let data = self.to_json().to_string().replace('<', "\\u003c");
        PAGE.replacen(PLACE, &data, 1)
    }

    /// Launches over frames in the trace-event format, for Perfetto (<https://ui.perfetto.dev>) or `chrome://tracing`. Each backend is a process, with
    /// times by its own clock from its first launch on; each pass of a frame is a thread.
    pub fn to_trace(&self) -> Value {
        let mut events = Vec::new();
        for (process, backend) in [(1, Backend::Gpu), (2, Backend::Cpu)] {
            let frames: Vec<_> = self.launches_by_frame.iter().filter(|frame| frame.backend == backend).collect();
            let Some(first) = frames.iter().map(|frame| frame.origin).min() else { continue };
            events.push(json!({
                "name": "process_name", "ph": "M", "pid": process, "tid": 0,
                "args": { "name": format!("tensor kernels on the {backend}") },
            }));
            for frame in frames {
                let origin = frame.origin - first;
                for span in &frame.spans {
                    events.push(json!({
                        "name": span.kernel,
                        "cat": "kernel",
                        "ph": "X",
                        "ts": micros(origin + span.start),
                        "dur": micros(span.end.saturating_sub(span.start)),
                        "pid": process,
                        "tid": span.pass + 1,
                        "args": {
                            "frame": frame.frame,
                            "variant": &*span.variant,
                            "op": span.op,
                            "site": span.site.to_string(),
                            "bytes": span.bytes,
                            "flops": span.flops,
                        },
                    }));
                }
            }
        }
        if !self.memory.is_empty() {
            events.push(json!({
                "name": "process_name", "ph": "M", "pid": 3, "tid": 0, "args": { "name": "tensor memory" },
            }));
        }
        for (time, bytes) in &self.memory {
            events.push(json!({
                "name": "device bytes", "ph": "C", "ts": micros(*time), "pid": 3, "tid": 0, "args": { "bytes": bytes },
            }));
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ms" })
    }

    /// Writes [`to_json`](Self::to_json) to a file, as a whole.
    pub fn save_json(&self, path: impl AsRef<Path>) -> io::Result<()> {
        replace_file(path.as_ref(), format!("{:#}", self.to_json()).as_bytes())
    }

    /// Writes [`to_html`](Self::to_html) to a file, as a whole.
    pub fn save_html(&self, path: impl AsRef<Path>) -> io::Result<()> {
        replace_file(path.as_ref(), self.to_html().as_bytes())
    }

    /// Writes [`to_trace`](Self::to_trace) to a file, as a whole.
    pub fn save_trace(&self, path: impl AsRef<Path>) -> io::Result<()> {
        replace_file(path.as_ref(), self.to_trace().to_string().as_bytes())
    }
}

fn timed(row: &TimedRow, detail: &str) -> Value {
    json!({
        "backend": row.backend.to_string(),
        "name": row.name,
        detail: row.detail,
        "launches": row.launches,
        "total_ns": nanos(row.total),
        "min_ns": nanos(row.min),
        "mean_ns": nanos(row.mean()),
        "p95_ns": nanos(row.p95),
        "max_ns": nanos(row.max),
        "bytes": row.bytes,
        "peak_bytes": row.peak_bytes,
        "flops": row.flops,
    })
}

fn frame(row: &FrameRow) -> Value {
    json!({
        "backend": row.backend.to_string(),
        "frame": row.frame,
        "launches": row.launches,
        "busy_ns": nanos(row.busy),
        "length_ns": nanos(row.length),
    })
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_the_page() {
        let nasty = "</script><script>alert(1)</script>";
        let report = TensorReport { adapter: nasty.to_owned(), ..TensorReport::default() };
        let page = report.to_html();
        assert!(!page.contains(nasty) && page.contains("\\u003c/script>"));
        assert_eq!(page.matches(PLACE).count(), 0);
    }

    #[test]
    fn the_page_loads_nothing() {
        for word in ["http://", "https://", "src=", "@import", "url("] {
            // The namespace of SVG is a name, not an address.
            let page = PAGE.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(word), "{word}");
        }
    }

    #[test]
    fn an_empty_report_has_a_trace_and_no_rate() {
        let report = TensorReport::default();
        assert_eq!(report.to_trace()["traceEvents"].as_array().map(Vec::len), Some(0));
        assert!(report.to_json()["pipeline_hit_rate"].is_null());
    }
}

//! The launches of one frame, as bars by pass.

use bevy::prelude::Entity;
use bevy_egui::egui::{self, Pos2, Rect, Sense, Stroke, vec2};

use super::{format, style};
use crate::figures::{FrameTimeline, LaunchSpan, TimingReport};

/// Height of a bar, and of the scale below.
const BAR: f32 = 18.0;
const SCALE: f32 = 16.0;

/// The frame the user held, if any.
#[derive(Clone, Debug, Default)]
pub(super) struct TimelineState {
    held: Option<FrameTimeline>,
}

pub(super) fn timeline(
    ui: &mut egui::Ui,
    timings: &TimingReport,
    state: &mut TimelineState,
    model_name: impl Fn(Entity) -> String,
) {
    // The newest may still be arriving.
    let latest = timings.frames.iter().rev().nth(1).or(timings.frames.last());
    let frame = state.held.as_ref().or(latest).cloned();
    ui.horizontal(|ui| {
        ui.strong("One frame");
        let mut held = state.held.is_some();
        if ui.checkbox(&mut held, "Hold").on_hover_text("Keep looking at this frame").changed() {
            state.held = frame.clone().filter(|_| held);
        }
        if let Some(frame) = &frame {
            let (busy, length) = (format::time(frame.busy()), format::time(frame.length()));
            let launches = frame.spans.len();
            ui.weak(format!("frame {} on the {}: {launches} launches, {busy} of {length}", frame.frame, frame.backend));
        }
    });
    let Some(frame) = frame else {
        ui.weak("No frame has been measured yet.");
        return;
    };
    let passes = frame.spans.iter().map(|span| span.pass + 1).max().unwrap_or(1);
    egui::ScrollArea::vertical().id_salt("timeline").auto_shrink([false, false]).show(ui, |ui| {
        let size = vec2(ui.available_width(), passes as f32 * (BAR + 3.0) + SCALE);
        let (rect, response) = ui.allocate_exact_size(size, Sense::hover());
        let label = format!("Timeline of {} launches", frame.spans.len());
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Other, true, &label));
        let whole = frame.length().as_secs_f32().max(1e-9);
        let x = |seconds: f32| rect.left() + seconds / whole * rect.width();
        let painter = ui.painter().with_clip_rect(rect);
        let mut hovered: Option<&LaunchSpan> = None;
        for span in &frame.spans {
            let (start, end) = (x(span.start.as_secs_f32()), x(span.end.as_secs_f32()));
            let top = rect.top() + span.pass as f32 * (BAR + 3.0);
            let bar = Rect::from_min_max(Pos2::new(start, top), Pos2::new(end.max(start + 1.0), top + BAR));
            painter.rect_filled(bar, 1.0, style::colour_of(span.kernel));
            if bar.width() > 3.0 {
                painter.vline(bar.right(), bar.y_range(), Stroke::new(0.5, ui.visuals().window_fill));
            }
            if bar.width() > span.kernel.len() as f32 * 7.0 + 8.0 {
                let font = egui::FontId::proportional(11.0);
                painter.text(bar.center(), egui::Align2::CENTER_CENTER, span.kernel, font, egui::Color32::WHITE);
            }
            if response.hover_pos().is_some_and(|pos| bar.expand2(vec2(1.0, 0.0)).contains(pos)) {
                hovered = Some(span);
            }
        }
        let (bottom, colour) = (rect.bottom() - SCALE, ui.visuals().weak_text_color());
        for i in 0..=4 {
            let part = i as f32 / 4.0;
            let align = [egui::Align2::LEFT_TOP, egui::Align2::CENTER_TOP, egui::Align2::RIGHT_TOP][match i {
                0 => 0,
                4 => 2,
                _ => 1,
            }];
            let at = Pos2::new(rect.left() + part * rect.width(), bottom + 2.0);
            let text = format::time(frame.length().mul_f32(part));
            painter.text(at, align, text, egui::FontId::proportional(10.0), colour);
        }
        if let Some(span) = hovered {
            let model = span.model.map_or_else(|| "none".to_owned(), &model_name);
            response.on_hover_text(format!(
                "{} {}\n{}, from {}\nfor {} at {}\nmodel: {model}\n{}, {:.3} MFLOP",
                span.kernel,
                span.variant,
                format::time(span.end.saturating_sub(span.start)),
                format::time(span.start),
                span.op,
                span.site,
                format::bytes(span.bytes),
                span.flops as f64 / 1e6,
            ));
        }
    });
}

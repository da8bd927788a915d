//! Small charts.

use bevy_egui::egui::{self, Color32, Pos2, Rect, Sense, Stroke, vec2};

use super::{format, style};

/// A stacked bar. Each part has a name, a size in bytes and a colour. The full width stands for `whole` bytes.
pub(super) fn stacked_bar(ui: &mut egui::Ui, label: &str, parts: &[(String, u64, Color32)], whole: u64, mark: bool) {
    let (rect, response) = ui.allocate_exact_size(vec2(ui.available_width(), 18.0), Sense::hover());
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::ProgressIndicator, true, label));
    let painter = ui.painter();
    painter.rect_filled(rect, 3.0, ui.visuals().extreme_bg_color);
    let whole = whole.max(1) as f32;
    let mut x = rect.left();
    let mut hovered = None;
    for (name, bytes, colour) in parts.iter().filter(|part| part.1 > 0) {
        let width = (*bytes as f32 / whole * rect.width()).max(1.0);
        let end = (x + width).min(rect.right());
        let part = Rect::from_min_max(Pos2::new(x, rect.top()), Pos2::new(end, rect.bottom()));
        painter.rect_filled(part, 0.0, *colour);
        if response.hover_pos().is_some_and(|pos| part.contains(pos)) {
            hovered = Some(format!("{name}: {}", format::bytes(*bytes)));
        }
        x = end;
    }
    let edge = ui.visuals().widgets.noninteractive.bg_stroke;
    painter.rect_stroke(rect, 3.0, edge, egui::StrokeKind::Inside);
    if mark {
        painter.vline(rect.right() - 1.0, rect.y_range(), Stroke::new(2.0, style::bad(ui)));
    }
    if let Some(text) = hovered {
        response.on_hover_text(text);
    }
}

/// A small line chart of recent values.
pub(super) fn sparkline(ui: &mut egui::Ui, values: impl ExactSizeIterator<Item = f32> + Clone, colour: Color32) {
    let size = vec2(ui.available_width().min(90.0), ui.available_height().min(16.0));
    let (rect, _) = ui.allocate_exact_size(size, Sense::hover());
    let highest = values.clone().fold(0.0f32, f32::max);
    if values.len() < 2 || highest <= 0.0 {
        return;
    }
    let last = (values.len() - 1) as f32;
    let point = |(i, value): (usize, f32)| {
        Pos2::new(rect.left() + i as f32 / last * rect.width(), rect.bottom() - value / highest * (rect.height() - 1.0))
    };
    ui.painter().line(values.enumerate().map(point).collect(), Stroke::new(1.2, colour));
}

/// A bar chart of counts, from the minimum to the maximum value.
pub(super) fn histogram(ui: &mut egui::Ui, bars: &[u64], min: f64, max: f64, height: f32) {
    let width = ui.available_width().min(320.0);
    let (rect, response) = ui.allocate_exact_size(vec2(width, height), Sense::hover());
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Other, true, "Histogram"));
    let painter = ui.painter();
    painter.rect_filled(rect, 2.0, ui.visuals().extreme_bg_color);
    let highest = bars.iter().copied().max().unwrap_or(0).max(1) as f32;
    let step = rect.width() / bars.len().max(1) as f32;
    let hovered = response.hover_pos().map(|pos| ((pos.x - rect.left()) / step) as usize);
    for (i, &count) in bars.iter().enumerate() {
        // Non-empty bars are always visible, because rare values are often the interesting ones.
        let size = if count == 0 { 0.0 } else { (count as f32 / highest * (rect.height() - 4.0)).max(1.5) };
        let left = rect.left() + i as f32 * step;
        let bar = Rect::from_min_max(
            Pos2::new(left + 0.5, rect.bottom() - size),
            Pos2::new(left + step - 0.5, rect.bottom()),
        );
        let colour = if hovered == Some(i) { style::colour(1) } else { style::colour(0) };
        painter.rect_filled(bar, 0.0, colour);
    }
    if let Some((i, &count)) = hovered.and_then(|i| bars.get(i).map(|count| (i, count))) {
        let edge = |i: usize| format::value(min + (max - min) * i as f64 / bars.len() as f64);
        response.on_hover_text(format!("{} values from {} to {}", format::count(count), edge(i), edge(i + 1)));
    }
}

/// Maps a number from 0 to 1 to the viridis colour map (polynomial approximation).
pub(super) fn heat(t: f64) -> [u8; 3] {
    let t = t.clamp(0.0, 1.0);
    let polynomial = |c: [f64; 7]| c.iter().rev().fold(0.0, |sum, c| sum * t + c);
    let red = polynomial([0.2777, 0.1050, -0.3308, -4.6342, 6.2282, 4.7763, -5.4354]);
    let green = polynomial([0.0054, 1.4046, 0.2148, -5.7991, 14.1799, -13.7451, 4.6458]);
    let blue = polynomial([0.3340, 1.3845, 0.0950, -19.3324, 56.6905, -65.3530, 26.3124]);
    [red, green, blue].map(|c| (c.clamp(0.0, 1.0) * 255.0).round() as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heat_goes_from_dark_blue_to_bright_yellow() {
        let [low, middle, high] = [0.0, 0.5, 1.0].map(heat);
        assert!(low[2] > low[1] && high[0] > 200 && high[1] > 200 && high[2] < 90, "{low:?} {middle:?} {high:?}");
        let light = |c: [u8; 3]| 0.3 * f64::from(c[0]) + 0.6 * f64::from(c[1]) + 0.1 * f64::from(c[2]);
        let steps: Vec<f64> = (0..=20).map(|i| light(heat(f64::from(i) / 20.0))).collect();
        assert!(steps.is_sorted(), "{steps:?}");
    }
}

//! The look of the inspector: theme, colours and shared widgets.

use std::sync::Arc;

use bevy::reflect::Reflect;
use bevy_egui::egui::{self, Color32};

/// The colour theme of the inspector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Reflect)]
pub enum InspectorTheme {
    /// The same theme as the app's egui.
    #[default]
    App,
    /// Dark.
    Dark,
    /// Light.
    Light,
}

/// The style of the inspector's window. The app's own windows are not affected.
pub(super) fn window_style(ctx: &egui::Context, theme: InspectorTheme) -> Arc<egui::Style> {
    let theme = match theme {
        InspectorTheme::App => return roomy(ctx.global_style()),
        InspectorTheme::Dark => egui::Theme::Dark,
        InspectorTheme::Light => egui::Theme::Light,
    };
    roomy(ctx.style_of(theme))
}

/// Puts scroll bars beside the content instead of over it, so that they do not cover the last column.
fn roomy(mut style: Arc<egui::Style>) -> Arc<egui::Style> {
    let scroll = &mut Arc::make_mut(&mut style).spacing.scroll;
    *scroll = egui::style::ScrollStyle::solid();
    // No fading at the edge: a partly visible row shows that there is more.
    scroll.fade.strength = 0.0;
    style
}

/// Distinguishable colours that are readable on light and dark backgrounds.
const PALETTE: [Color32; 8] = [
    Color32::from_rgb(66, 133, 214),
    Color32::from_rgb(226, 138, 48),
    Color32::from_rgb(76, 168, 92),
    Color32::from_rgb(203, 82, 96),
    Color32::from_rgb(142, 108, 199),
    Color32::from_rgb(46, 168, 174),
    Color32::from_rgb(196, 112, 168),
    Color32::from_rgb(158, 142, 62),
];

/// The colour with index `n`, repeating.
pub(super) fn colour(n: usize) -> Color32 {
    PALETTE[n % PALETTE.len()]
}

/// A colour derived from a name, so that equal names have equal colours.
pub(super) fn colour_of(name: &str) -> Color32 {
    let hash = name.bytes().fold(0xcbf2_9ce4_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    // The upper bits depend on every character, so few names share a hue.
    let hue = (hash.wrapping_mul(0x9e37_79b9) >> 16) as f32 / 65_536.0;
    egui::ecolor::Hsva::new(hue, 0.6, 0.72, 1.0).into()
}

/// Text colours for good, doubtful and bad values.
pub(super) fn good(ui: &egui::Ui) -> Color32 {
    if ui.visuals().dark_mode { Color32::from_rgb(98, 190, 112) } else { Color32::from_rgb(30, 126, 52) }
}

pub(super) fn doubtful(ui: &egui::Ui) -> Color32 {
    if ui.visuals().dark_mode { Color32::from_rgb(232, 178, 72) } else { Color32::from_rgb(168, 104, 0) }
}

pub(super) fn bad(ui: &egui::Ui) -> Color32 {
    if ui.visuals().dark_mode { Color32::from_rgb(240, 110, 110) } else { Color32::from_rgb(190, 30, 40) }
}

/// A button with an icon. `label` is its tooltip and its name for screen readers and tests.
pub(super) fn icon_button(ui: &mut egui::Ui, icon: &str, label: &str) -> egui::Response {
    let response = ui.add(egui::Button::new(icon).frame(false));
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, label));
    response.on_hover_text(label)
}

/// A search field.
pub(super) fn search(ui: &mut egui::Ui, text: &mut String, label: &str) {
    let field = egui::TextEdit::singleline(text).hint_text(label).desired_width(170.0);
    let response = ui.add(field);
    name(ui, &response, label);
    if !text.is_empty() && icon_button(ui, "❌", "Clear the search").clicked() {
        text.clear();
    }
}

/// Sets the name of a widget for screen readers and tests.
pub(super) fn name(ui: &egui::Ui, response: &egui::Response, label: &str) {
    ui.ctx().accesskit_node_builder(response.id, |node| node.set_label(label));
}

/// Clickable column headers that set the sort order. Headers of numeric columns are right-aligned.
pub(super) fn sort_headers<S: Copy + PartialEq>(
    header: &mut egui_extras::TableRow<'_, '_>,
    columns: &[(&str, S, bool)],
    sort: &mut (S, bool),
) {
    for &(label, by, number) in columns {
        header.col(|ui| {
            if number {
                let right = egui::Layout::right_to_left(egui::Align::Center);
                ui.with_layout(right, |ui| sort_header(ui, label, by, sort));
            } else {
                sort_header(ui, label, by, sort);
            }
        });
    }
}

/// A clickable column header. A second click reverses the order.
fn sort_header<S: Copy + PartialEq>(ui: &mut egui::Ui, label: &str, by: S, sort: &mut (S, bool)) {
    let text = match (sort.0 == by, sort.1) {
        (true, true) => format!("{label} ⏷"),
        (true, false) => format!("{label} ⏶"),
        (false, _) => label.to_owned(),
    };
    let response = ui.add(egui::Button::new(egui::RichText::new(text).strong()).frame(false));
    let described = format!("Sort by {}", label.to_lowercase());
    response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, &described));
    if response.on_hover_text(&described).clicked() {
        *sort = if sort.0 == by { (by, !sort.1) } else { (by, true) };
    }
}

/// A label that is truncated to the cell. The tooltip shows the full text.
pub(super) fn cut(ui: &mut egui::Ui, text: impl Into<egui::WidgetText>) -> egui::Response {
    ui.add(egui::Label::new(text).truncate())
}

/// A right-aligned number.
pub(super) fn number(ui: &mut egui::Ui, text: impl Into<egui::RichText>) {
    ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
        ui.add(egui::Label::new(text.into().monospace()).extend());
    });
}

/// The placeholder of a panel without data.
pub(super) fn empty(ui: &mut egui::Ui, title: &str, hint: &str) {
    ui.add_space(24.0);
    ui.vertical_centered(|ui| {
        ui.label(egui::RichText::new(title).size(16.0));
        ui.weak(hint);
    });
    ui.add_space(24.0);
}

/// A small coloured square, as in a legend.
pub(super) fn swatch(ui: &mut egui::Ui, colour: Color32) {
    let (rect, _) = ui.allocate_exact_size(egui::vec2(10.0, 10.0), egui::Sense::hover());
    ui.painter().rect_filled(rect, 2.0, colour);
}

/// A grid of names and values.
pub(super) fn facts(ui: &mut egui::Ui, id: &str, rows: &[(&str, String)]) {
    egui::Grid::new(id).num_columns(2).min_col_width(130.0).spacing([16.0, 3.0]).show(ui, |ui| {
        for (name, value) in rows {
            ui.weak(*name);
            ui.label(value);
            ui.end_row();
        }
    });
}

/// A striped table with cells that are filled from left to right.
pub(super) fn table<'a>(ui: &'a mut egui::Ui, id: &str) -> egui_extras::TableBuilder<'a> {
    let cells = egui::Layout::left_to_right(egui::Align::Center);
    egui_extras::TableBuilder::new(ui).id_salt(id).striped(true).cell_layout(cells)
}

/// Column headers. The first is left-aligned, the others are right-aligned.
pub(super) fn heads<'a>(table: egui_extras::TableBuilder<'a>, titles: &[&str]) -> egui_extras::Table<'a> {
    table.header(ROW, |mut header| {
        for (i, &title) in titles.iter().enumerate() {
            header.col(|ui| {
                if i == 0 {
                    ui.strong(title);
                } else {
                    ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| ui.strong(title));
                }
            });
        }
    })
}

/// Height of table rows.
pub(super) const ROW: f32 = 20.0;

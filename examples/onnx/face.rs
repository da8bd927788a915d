//! The answer of the model that comes with the crate: where BlazeFace finds the face.

use bevy_tensor_compute::onnx::OnnxAnswers;

/// The best face: its score, and its centre and size in parts of the picture.
pub struct Face {
    pub score: f32,
    pub centre: [f32; 2],
    pub size: [f32; 2],
}

/// The model has two grids of anchors: 16 × 16 with two each and 8 × 8 with six each. A box is an offset from the centre of
/// its cell, in pixels of a picture of 128 × 128.
pub fn best(answers: &OnnxAnswers) -> Option<Face> {
    let mut best: Option<Face> = None;
    for (scores, boxes, side, each) in [("Identity:0", "Identity_2:0", 16, 2), ("Identity_1:0", "Identity_3:0", 8, 6)] {
        let (scores, boxes) = (answers.get(scores)?.to_f32().ok()?, answers.get(boxes)?.to_f32().ok()?);
        for (i, score) in scores.iter().enumerate() {
            let score = 1.0 / (1.0 + (-score).exp());
            let Some([x, y, width, height, ..]) = boxes.get(i * 16..i * 16 + 16) else { continue };
            if best.as_ref().is_none_or(|best| score > best.score) {
                let cell = i / each;
                let centre = |at: usize, offset: f32| (at as f32 + 0.5) / side as f32 + offset / 128.0;
                best = Some(Face {
                    score,
                    centre: [centre(cell % side, *x), centre(cell / side, *y)],
                    size: [width / 128.0, height / 128.0],
                });
            }
        }
    }
    best
}

//! Sampling of pictures and volumes at positions that are data.

/// How elements are taken at positions between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sampling {
    pub filter: SampleFilter,
    pub padding: SamplePadding,
    pub coordinates: SampleCoordinates,
}

/// How the elements around a position are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum SampleFilter {
    /// The nearest element. Halves are rounded to even.
    Nearest,
    /// The two nearest elements of each axis, by distance.
    #[default]
    Linear,
    /// The four nearest elements of each axis, by cubic convolution with a = −0.75.
    Cubic,
}

/// What is outside the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum SamplePadding {
    /// Zeros.
    #[default]
    Zeros,
    /// The nearest element of the edge.
    Border,
    /// The picture in mirrors at its edges.
    Reflection,
}

/// What a coordinate means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SampleCoordinates {
    /// −1 is the outer edge of the first element, 1 the outer edge of the last.
    Edges,
    /// −1 is the centre of the first element, 1 the centre of the last.
    Centres,
    /// 0 is the centre of the first element, 1 the centre of the second.
    Pixels,
}

/// How regions of a picture are pooled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RoiPooling {
    pub kind: RoiKind,
    /// Height and width of the result.
    pub size: [usize; 2],
    /// The bits of the factor from the coordinates of regions to those of the picture.
    pub scale: u32,
}

/// What is pooled in each cell of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RoiKind {
    /// Samples between elements, `samples` along each axis of a cell, or as many as the cell has elements if that is 0.
    /// `half_pixel` shifts regions by half an element.
    Samples { max: bool, samples: u32, half_pixel: bool },
    /// The largest of the whole elements that a cell touches.
    Elements,
}

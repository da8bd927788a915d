//! Kernel params: a Rust struct with `#[derive(Reflect)]` and a WGSL struct with the same members. Members are matched
//! by name and placed by the WGSL layout, so the two cannot diverge.

use core::any::TypeId;

use bevy::math::{IVec2, IVec3, IVec4, Mat2, Mat3, Mat4, UVec2, UVec3, UVec4, Vec2, Vec3, Vec4};
use bevy::reflect::{PartialReflect, Reflect, ReflectRef, TypeInfo};
use naga::{ArraySize, Handle, Module, ScalarKind, Type, TypeInner};

use super::KernelNumber;
use crate::ir::{Class, Member, Numbers, ParamsLayout};

impl Numbers {
    /// Word offsets of the numbers, column by column. A column of three takes the space of four.
    fn places(self) -> impl Iterator<Item = usize> {
        let pitch = if self.rows == 3 { 4 } else { self.rows };
        (0..self.columns).flat_map(move |column| (0..self.rows).map(move |row| column * pitch + row))
    }
}

impl core::fmt::Display for Numbers {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let class = crate::kernel::wgsl_type(self.class);
        match (self.rows, self.columns) {
            (1, 1) => f.write_str(class),
            (rows, 1) => write!(f, "vec{rows}<{class}>"),
            (rows, columns) => write!(f, "mat{columns}x{rows}<{class}>"),
        }
    }
}

/// A Rust type with a WGSL counterpart. Members of a kernel's params have such types.
pub trait ParamValue: Reflect + Copy {
    /// Creates a value from its 32-bit numbers, in order. Returns `None` if their count is wrong.
    #[doc(hidden)]
    fn from_bits(bits: &[u32]) -> Option<Self>;
}

macro_rules! param_values {
    ($($ty:ty: $number:ty, $class:ident, $rows:literal x $columns:literal, $to:expr, $from:expr;)*) => {
        /// The WGSL counterpart of a Rust type.
        fn numbers_of(id: TypeId) -> Option<Numbers> {
            $(if id == TypeId::of::<$ty>() {
                return Some(Numbers { class: Class::$class, rows: $rows, columns: $columns });
            })*
            None
        }

        /// The numbers of a value.
        fn bits_of(value: &dyn PartialReflect, mut put: impl FnMut(u32)) {
            $(if let Some(value) = value.try_downcast_ref::<$ty>() {
                let to: fn(&$ty) -> [$number; $rows * $columns] = $to;
                return to(value).into_iter().for_each(|number| put(number.bits()));
            })*
        }

        $(impl ParamValue for $ty {
            fn from_bits(bits: &[u32]) -> Option<Self> {
                let bits: [u32; $rows * $columns] = bits.try_into().ok()?;
                let from: fn([$number; $rows * $columns]) -> $ty = $from;
                Some(from(bits.map(<$number as KernelNumber>::from_bits)))
            }
        })*
    };
}
param_values! {
    f32: f32, Float, 1 x 1, |v| [*v], |v| v[0];
    i32: i32, Int, 1 x 1, |v| [*v], |v| v[0];
    u32: u32, Uint, 1 x 1, |v| [*v], |v| v[0];
    Vec2: f32, Float, 2 x 1, Vec2::to_array, Vec2::from_array;
    Vec3: f32, Float, 3 x 1, Vec3::to_array, Vec3::from_array;
    Vec4: f32, Float, 4 x 1, Vec4::to_array, Vec4::from_array;
    IVec2: i32, Int, 2 x 1, IVec2::to_array, IVec2::from_array;
    IVec3: i32, Int, 3 x 1, IVec3::to_array, IVec3::from_array;
    IVec4: i32, Int, 4 x 1, IVec4::to_array, IVec4::from_array;
    UVec2: u32, Uint, 2 x 1, UVec2::to_array, UVec2::from_array;
    UVec3: u32, Uint, 3 x 1, UVec3::to_array, UVec3::from_array;
    UVec4: u32, Uint, 4 x 1, UVec4::to_array, UVec4::from_array;
    Mat2: f32, Float, 2 x 2, Mat2::to_cols_array, |v| Mat2::from_cols_array(&v);
    Mat3: f32, Float, 3 x 3, Mat3::to_cols_array, |v| Mat3::from_cols_array(&v);
    Mat4: f32, Float, 4 x 4, Mat4::to_cols_array, |v| Mat4::from_cols_array(&v);
}

/// The declared Rust type of a kernel's params.
#[derive(Clone, Copy, Debug)]
pub(super) struct ParamsType {
    pub id: TypeId,
    pub info: &'static TypeInfo,
}

impl ParamsLayout {
    /// Matches a WGSL struct with the Rust type. The error describes the first difference.
    pub(super) fn new(module: &Module, ty: Handle<Type>, storage: bool, rust: ParamsType) -> Result<Self, String> {
        let TypeInner::Struct { members, span } = &module.types[ty].inner else {
            return Err("params must be a struct".to_owned());
        };
        let TypeInfo::Struct(fields) = rust.info else {
            return Err(format!("{} is not a struct with named fields", rust.info.type_path()));
        };
        let mut found = Vec::new();
        for member in members {
            let name = member.name.clone().unwrap_or_default();
            let Some(field) = fields.field(&name) else {
                return Err(format!("member `{name}` is not a field of {}", rust.info.type_path()));
            };
            let place = member.offset as usize / 4;
            let (element, array) = member_type(module, member.ty)
                .ok_or_else(|| format!("member `{name}` has a type that params do not support"))?;
            let (item, count) = match field.type_info() {
                Some(TypeInfo::Array(array)) => (array.item_ty().id(), Some(array.capacity())),
                _ => (field.ty().id(), None),
            };
            let same = numbers_of(item) == Some(element) && count == array.map(|(count, _)| count);
            if !same {
                let wgsl = match array {
                    Some((count, _)) => format!("array<{element}, {count}>"),
                    None => element.to_string(),
                };
                return Err(format!("member `{name}` is {wgsl} in WGSL but {} in Rust", field.type_path()));
            }
            found.push(Member { name, offset: place, element, array });
        }
        if let Some(extra) = fields.iter().find(|field| found.iter().all(|member| member.name != field.name())) {
            return Err(format!("field `{}` of {} is not a member in WGSL", extra.name(), rust.info.type_path()));
        }
        let words = (*span as usize).div_ceil(4);
        Ok(Self { type_id: rust.id, type_path: rust.info.type_path(), words, storage, members: found })
    }

    /// Writes a value of the Rust type as words of the struct.
    pub(crate) fn write(&self, value: &dyn PartialReflect) -> Vec<u32> {
        let mut words = vec![0; self.words];
        let ReflectRef::Struct(fields) = value.reflect_ref() else { return words };
        for member in &self.members {
            let Some(field) = fields.field(&member.name) else { continue };
            let mut put = |from: usize, value: &dyn PartialReflect| {
                let mut places = member.element.places();
                bits_of(value, |bits| {
                    if let Some(word) = places.next().and_then(|place| words.get_mut(from + place)) {
                        *word = bits;
                    }
                });
            };
            match (member.array, field.reflect_ref()) {
                (Some((_, stride)), ReflectRef::Array(items)) => {
                    items.iter().enumerate().for_each(|(i, item)| put(member.offset + i * stride, item));
                }
                _ => put(member.offset, field),
            }
        }
        words
    }

    /// Reads a member from the words of the struct. Returns `None` if there is no such member or it has another type.
    pub(super) fn read<T: ParamValue>(&self, words: &[u32], name: &str, index: usize) -> Option<T> {
        let member = self.members.iter().find(|member| member.name == name)?;
        if numbers_of(TypeId::of::<T>()) != Some(member.element) {
            return None;
        }
        let from = match member.array {
            Some((count, stride)) if index < count => member.offset + index * stride,
            None if index == 0 => member.offset,
            _ => return None,
        };
        let bits: Option<Vec<u32>> = member.element.places().map(|place| words.get(from + place).copied()).collect();
        T::from_bits(&bits?)
    }
}

/// A member's type: its element, and the length and stride of an array.
fn member_type(module: &Module, ty: Handle<Type>) -> Option<(Numbers, Option<(usize, usize)>)> {
    match module.types[ty].inner {
        TypeInner::Array { base, size: ArraySize::Constant(count), stride } => {
            Some((numbers(module, base)?, Some((count.get() as usize, stride as usize / 4))))
        }
        _ => Some((numbers(module, ty)?, None)),
    }
}

fn numbers(module: &Module, ty: Handle<Type>) -> Option<Numbers> {
    let (scalar, rows, columns) = match module.types[ty].inner {
        TypeInner::Scalar(scalar) => (scalar, 1, 1),
        TypeInner::Vector { size, scalar } => (scalar, size as usize, 1),
        TypeInner::Matrix { columns, rows, scalar } => (scalar, rows as usize, columns as usize),
        _ => return None,
    };
    Some(Numbers { class: class_of(scalar)?, rows, columns })
}

/// The class of a 32-bit number.
pub(super) fn class_of(scalar: naga::Scalar) -> Option<Class> {
    match (scalar.kind, scalar.width) {
        (ScalarKind::Float, 4) => Some(Class::Float),
        (ScalarKind::Sint, 4) => Some(Class::Int),
        (ScalarKind::Uint, 4) => Some(Class::Uint),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bevy::reflect::Typed;

    use super::*;

    #[derive(Reflect)]
    struct Params {
        scale: f32,
        offset: Vec3,
        count: u32,
        turn: Mat3,
        weights: [f32; 3],
    }

    fn layout<P: Typed + Reflect>(members: &str) -> Result<ParamsLayout, String> {
        let text = format!("struct Params {{ {members} }} var<storage, read> params: Params;");
        let module = naga::front::wgsl::parse_str(&text).expect("valid");
        let ty = module.global_variables.iter().next().expect("one").1.ty;
        ParamsLayout::new(&module, ty, true, ParamsType { id: TypeId::of::<P>(), info: P::type_info() })
    }

    const MEMBERS: &str = "scale: f32, count: u32, turn: mat3x3<f32>, offset: vec3<f32>, weights: array<f32, 3>";

    #[test]
    fn values_lie_where_the_struct_says() {
        let layout = layout::<Params>(MEMBERS).expect("the same members");
        let turn = Mat3::from_cols_array(&[1., 2., 3., 4., 5., 6., 7., 8., 9.]);
        let params = Params { scale: 0.5, offset: Vec3::new(10., 11., 12.), count: 7, turn, weights: [20., 21., 22.] };
        let words = layout.write(&params);
        let floats: Vec<f32> = words.iter().map(|&word| f32::from_bits(word)).collect();
        assert_eq!((words.len(), floats[0], words[1]), (24, 0.5, 7));
        assert_eq!(floats[4..16], [1., 2., 3., 0., 4., 5., 6., 0., 7., 8., 9., 0.]);
        assert_eq!((&floats[16..19], &floats[19..22]), (&[10., 11., 12.][..], &[20., 21., 22.][..]));
        assert_eq!(layout.read::<Vec3>(&words, "offset", 0), Some(params.offset));
        assert_eq!(layout.read::<Mat3>(&words, "turn", 0), Some(turn));
        assert_eq!(layout.read::<f32>(&words, "weights", 2), Some(22.0));
        assert_eq!((layout.read::<u32>(&words, "scale", 0), layout.read::<f32>(&words, "none", 0)), (None, None));
    }

    #[test]
    fn errors_name_the_member_that_differs() {
        let error = |members: &str| layout::<Params>(members).expect_err("they differ");
        assert!(error(&MEMBERS.replace("count: u32", "count: i32")).contains("`count` is i32 in WGSL but u32"));
        assert!(error(&MEMBERS.replace("scale", "size")).contains("`size` is not a field"));
        assert!(error(&MEMBERS.replace("scale: f32, ", "")).contains("`scale` of"));
        assert!(error(&MEMBERS.replace("array<f32, 3>", "array<f32, 4>")).contains("array<f32, 4> in WGSL"));
    }
}

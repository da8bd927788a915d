//! The tiles of the gallery: their positions, and how they move, grow and glow for a search.

use core::f32::consts::PI;

use bevy::asset::RenderAssetUsages;
use bevy::camera::visibility::RenderLayers;
use bevy::prelude::*;
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat};

use super::flat::Flat;
use crate::engine::library::Library;
use crate::engine::search::{TextRanked, best};

/// Number of tiles in a row of the wall.
const COLUMNS: usize = 16;

/// Distance between tiles, and the radius of the wall.
const PITCH: f32 = 1.02;
const RADIUS: f32 = 11.0;

/// Number of tiles that come forward, and their sizes. After the first few, only tiles that are sufficiently similar to
/// the best one.
const FRONT: usize = 5;
const FEW: usize = 3;
const SOMEWHAT: f32 = 0.15;
const SIZES: [f32; FRONT] = [2.05, 1.7, 1.7, 1.4, 1.4];

/// A picture of the gallery.
#[derive(Component)]
pub struct Tile {
    pub index: usize,
    /// Its position on the wall.
    home: Vec3,
    /// Its rank, if it is one of the best.
    pub rank: Option<usize>,
    pub score: f32,
    /// Similarity to the query, from 0 to 1 for the best.
    likeness: f32,
    /// The transform it moves to.
    target: Transform,
    card: Handle<Flat>,
    face: Handle<Flat>,
    halo: Entity,
}

/// The picture on a tile.
#[derive(Component)]
pub struct Face;

/// The glow behind a tile.
#[derive(Component)]
struct Halo(Handle<Flat>);

pub fn plugin(app: &mut App) {
    app.add_systems(Startup, spawn_tiles).add_systems(Update, (rank_tiles, move_tiles).chain());
}

fn spawn_tiles(
    library: Res<Library>,
    server: Res<AssetServer>,
    mut commands: Commands,
    mut meshes: ResMut<Assets<Mesh>>,
    mut materials: ResMut<Assets<Flat>>,
    mut images: ResMut<Assets<Image>>,
) {
    let square = meshes.add(Rectangle::new(1.0, 1.0));
    let (card, halo) = (images.add(card_image()), images.add(halo_image()));
    let rows = library.gallery.len().div_ceil(COLUMNS);
    for (index, picture) in library.gallery.iter().enumerate() {
        let (row, column) = (index / COLUMNS, index % COLUMNS);
        let angle = (column as f32 - (COLUMNS as f32 - 1.0) / 2.0) * PITCH / RADIUS;
        let height = ((rows as f32 - 1.0) / 2.0 - row as f32) * PITCH;
        let home = Vec3::new(angle.sin() * RADIUS, height - 0.35, RADIUS - angle.cos() * RADIUS - 2.2);
        let mut layer = |image, tint: Color, mode| materials.add(Flat { tint: tint.to_linear(), image, mode });
        let cards = layer(card.clone(), Color::srgba(0.5, 0.55, 0.75, 0.35), AlphaMode::Blend);
        let face = layer(server.load(format!("gallery/{}", picture.file)), Color::WHITE, AlphaMode::Blend);
        let glow = layer(halo.clone(), Color::NONE, AlphaMode::Add);
        let flat = |material: Handle<Flat>, z: f32, size: f32| {
            let place = Transform::from_xyz(0.0, 0.0, z).with_scale(Vec3::splat(size));
            (Mesh3d(square.clone()), MeshMaterial3d(material), place)
        };
        let halo = commands.spawn((flat(glow.clone(), -0.03, 2.3), Halo(glow), Visibility::Hidden)).id();
        let transform = Transform::from_translation(home);
        let tile = Tile {
            index,
            home,
            rank: None,
            score: 0.0,
            likeness: 0.5,
            target: transform,
            card: cards.clone(),
            face: face.clone(),
            halo,
        };
        commands
            .spawn((tile, transform, Visibility::default()))
            .with_child(flat(cards, 0.0, 0.95))
            .with_child((Face, flat(face, 0.02, 0.74), RenderLayers::default()))
            .add_child(halo);
    }
}

/// Assigns tiles their positions from the newest answer.
fn rank_tiles(mut ranked: MessageReader<TextRanked>, mut tiles: Query<&mut Tile>) {
    let Some(scores) = ranked.read().filter_map(|answer| answer.scores.as_ref().ok()).last() else { return };
    let mut top = best(scores, FRONT);
    let (Some(&(_, most)), Some(least)) = (top.first(), scores.iter().copied().reduce(f32::min)) else { return };
    top.truncate(top.partition_point(|&(_, score)| score >= most * SOMEWHAT).max(FEW));
    for mut tile in &mut tiles {
        let Some(&score) = scores.get(tile.index) else { continue };
        tile.score = score;
        tile.likeness = ((score - least) / (most - least).max(1e-3)).clamp(0.0, 1.0);
        tile.rank = top.iter().position(|&(index, _)| index == tile.index);
        tile.target = match tile.rank {
            // The best tile in the middle, the others alternating left and right.
            Some(rank) => {
                let side = if rank % 2 == 1 { -1.0 } else { 1.0 };
                let x = side * [0.0, 1.95, 1.95, 3.55, 3.55][rank];
                Transform::from_xyz(x, -0.1, 3.1 - x.abs() * 0.12).with_scale(Vec3::splat(SIZES[rank]))
            }
            None => {
                let back = Vec3::new(0.0, 0.0, tile.likeness * 0.9 - 0.6);
                Transform::from_translation(tile.home + back).with_scale(Vec3::splat(0.62 + 0.38 * tile.likeness))
            }
        };
    }
}

/// Moves tiles towards their targets and updates their colours.
fn move_tiles(
    time: Res<Time>,
    mut tiles: Query<(&Tile, &Children, &mut Transform)>,
    mut layers: Query<&mut MeshMaterial3d<Flat>>,
    mut halos: Query<(&Halo, &mut Visibility)>,
    mut materials: ResMut<Assets<Flat>>,
) {
    let blend = 1.0 - (-6.0 * time.delta_secs().min(0.1)).exp();
    let beat = 0.85 + 0.15 * (time.elapsed_secs() * 2.2).sin();
    for (tile, children, mut transform) in &mut tiles {
        let (target, front) = (tile.target, tile.rank.is_some());
        if transform.translation.distance_squared(target.translation) > 1e-6
            || (transform.scale.x - target.scale.x).abs() > 1e-3
        {
            transform.translation = transform.translation.lerp(target.translation, blend);
            transform.scale = transform.scale.lerp(target.scale, blend);
            let towards = if front { 0.0 } else { -tile.home.x / RADIUS };
            transform.rotation = transform.rotation.slerp(Quat::from_rotation_y(towards), blend);
            // Bevy sorts transparent meshes by their position when their material last changed.
            let mut layers = layers.iter_many_mut(children);
            while let Some(mut layer) = layers.fetch_next() {
                layer.set_changed();
            }
        }
        // Changed materials are uploaded, so they only change if the difference is visible.
        let light = if front { 1.0 } else { 0.28 + 0.55 * tile.likeness };
        let colour = Color::srgb(light, light, light.max(0.34));
        let card = match tile.rank {
            Some(0) => Color::srgba(1.0, 0.86, 0.55, 0.94),
            Some(_) => Color::srgba(0.62, 0.67, 0.92, 0.9),
            None => Color::srgba(0.42, 0.47, 0.7, 0.1 + 0.22 * tile.likeness),
        };
        for (handle, colour) in [(&tile.face, colour), (&tile.card, card)] {
            let tint = colour.to_linear();
            let stale = materials.get(handle).is_some_and(|material| material.tint != tint);
            if stale && let Some(mut material) = materials.get_mut(handle) {
                material.tint = tint;
            }
        }
        let Ok((halo, mut visibility)) = halos.get_mut(tile.halo) else { continue };
        let shown = if front { Visibility::Inherited } else { Visibility::Hidden };
        visibility.set_if_neq(shown);
        if let (Some(rank), Some(mut material)) = (tile.rank, materials.get_mut(&halo.0).filter(|_| front)) {
            let strength = beat * [0.75, 0.4, 0.32, 0.22, 0.18][rank];
            let warm = if rank == 0 { Vec3::new(1.0, 0.72, 0.3) } else { Vec3::new(0.45, 0.55, 1.0) };
            material.tint = Color::srgb_from_array((warm * strength).to_array()).to_linear().with_alpha(0.0);
        }
    }
}

fn square_image(size: usize, shade: impl Fn(Vec2) -> [f32; 4]) -> Image {
    let mut data = Vec::with_capacity(size * size * 4);
    for y in 0..size {
        for x in 0..size {
            let at = (Vec2::new(x as f32, y as f32) + 0.5) / size as f32 * 2.0 - 1.0;
            data.extend(shade(at).map(|c| (c.clamp(0.0, 1.0) * 255.0).round() as u8));
        }
    }
    let size = Extent3d { width: size as u32, height: size as u32, depth_or_array_layers: 1 };
    Image::new(size, TextureDimension::D2, data, TextureFormat::Rgba8UnormSrgb, RenderAssetUsages::RENDER_WORLD)
}

/// A card with round corners, lighter at its top and edge.
fn card_image() -> Image {
    square_image(128, |at| {
        const CORNER: f32 = 0.26;
        let outside = (at.abs() - (0.97 - CORNER)).max(Vec2::ZERO).length() - CORNER;
        let inside = (-outside / 0.02).clamp(0.0, 1.0);
        let edge = (1.0 - (outside.abs() / 0.035)).clamp(0.0, 1.0);
        let light = 0.62 - 0.22 * at.y + 0.5 * edge;
        [light, light, light, inside * (0.75 + 0.25 * edge)]
    })
}

/// Light that fades to nothing at the edge.
fn halo_image() -> Image {
    square_image(128, |at| {
        let fade = 0.5 + 0.5 * (at.length().min(1.0) * PI).cos();
        let light = fade * fade;
        [light, light, light, light]
    })
}

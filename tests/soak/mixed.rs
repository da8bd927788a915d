//! What a game does beside ops: custom kernels, pictures, files, models that move between the backends, devices that
//! are lost, and a renderer that stands still.

use std::path::PathBuf;
use std::time::Instant;

use bevy::app::SubApp;
use bevy::asset::RenderAssetUsages;
use bevy::ecs::system::SystemState;
use bevy::prelude::*;
use bevy::render::RenderApp;
use bevy::render::error_handler::{ErrorType, RenderErrorHandler, RenderErrorPolicy};
use bevy::render::render_resource::{Extent3d, TextureDimension, TextureFormat};
use bevy::render::renderer::RenderDevice;
use bevy::render::settings::RenderCreation;
use bevy_tensor_compute::formats::{TensorsLoaded, TensorsSaved};
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::tensor::Residency;

use super::{Pending, Soak};
use crate::common::{Faults, Rig};

/// A model of one tensor that moves between the backends.
struct Mover {
    model: Entity,
    tensor: Entity,
    content: Vec<f32>,
    home: Backend,
}

/// A model of one tensor that is saved and loaded.
struct Keeper {
    model: Entity,
    content: Vec<f32>,
    /// What the file has.
    saved: Option<Vec<f32>>,
    /// What the file will have, while it is being written.
    saving: Option<Vec<f32>>,
    loading: bool,
    path: PathBuf,
}

/// A picture whose pixels become a tensor, and the frame from which on they are there.
struct Shown {
    tensor: Entity,
    pixels: Vec<u8>,
    from: usize,
}

/// Events of files that have not been looked at.
#[derive(Resource, Default)]
struct FileEvents(Vec<bool>);

pub(super) struct Mixed {
    kernel: TensorKernel,
    mover: Mover,
    keeper: Keeper,
    picture: Option<Shown>,
    /// Frames in which the renderer still stands still, and the renderer.
    still: Option<(usize, SubApp)>,
    pub losses: usize,
    pub pauses: usize,
    pub moves: usize,
    pub files: usize,
    pub pictures: usize,
}

const MOVED: usize = 100;

impl Mixed {
    pub(super) fn new(rig: &mut Rig) -> Self {
        rig.app.insert_resource(RenderErrorHandler(|error, _, _| match error.ty {
            ErrorType::DeviceLost => RenderErrorPolicy::Recover(RenderCreation::default()),
            _ => RenderErrorPolicy::Ignore,
        }));
        rig.app.init_resource::<FileEvents>();
        rig.app.add_observer(|saved: On<TensorsSaved>, mut events: ResMut<FileEvents>| {
            events.0.push(saved.result.is_ok());
        });
        rig.app.add_observer(|loaded: On<TensorsLoaded>, mut events: ResMut<FileEvents>| {
            events.0.push(loaded.result.is_ok());
        });
        let text = "fn climb(x: f32) -> f32 { return min(x, 900.0) + 1.0; }";
        let kernel = CustomKernel::elementwise("climb", text).cpu_element(|x: f32| -> f32 { x.min(900.0) + 1.0 });
        let kernel = rig.app.register_kernel(kernel).unwrap();
        let path = std::env::temp_dir().join(format!("tensor_soak_{}.safetensors", std::process::id()));
        let keeper = Keeper {
            model: rig.app.world_mut().spawn(TensorModel).id(),
            content: vec![1.0; 50],
            saved: None,
            saving: None,
            loading: false,
            path,
        };
        let tensor = Tensor::from_slice(&keeper.content, [50]).unwrap();
        rig.app.world_mut().spawn((Name::new("w"), tensor, TensorOf(keeper.model)));
        let mover = spawn_mover(rig);
        let (losses, pauses, moves, files, pictures) = (0, 0, 0, 0, 0);
        Self { kernel, mover, keeper, picture: None, still: None, losses, pauses, moves, files, pictures }
    }
}

fn spawn_mover(rig: &mut Rig) -> Mover {
    let content: Vec<f32> = (0..MOVED).map(|i| i as f32).collect();
    let model = rig.app.world_mut().spawn((TensorModel, ModelBackend(Backend::Gpu))).id();
    let tensor = Tensor::from_slice(&content, [MOVED]).unwrap();
    let tensor = rig.app.world_mut().spawn((Name::new("moved"), tensor, TensorOf(model))).id();
    Mover { model, tensor, content, home: Backend::Gpu }
}

impl Soak {
    /// Something beside ops.
    pub(super) fn mix(&mut self) {
        match self.random.below(400) {
            0 if self.mixed.still.is_none() => self.lose_device(),
            1..6 if self.mixed.still.is_none() => self.stop_renderer(),
            6..46 => self.move_model(),
            46..86 => self.files(),
            86..126 if self.mixed.still.is_none() => self.picture(),
            126..200 => self.custom(),
            _ => {}
        }
        if let Some((frames, renderer)) = self.mixed.still.take() {
            match frames {
                0 => self.rig.app.insert_sub_app(RenderApp, renderer),
                _ => self.mixed.still = Some((frames - 1, renderer)),
            }
        }
        self.file_events();
    }

    /// Lets the renderer run again, and everything end.
    pub(super) fn end_mix(&mut self) {
        if let Some((_, renderer)) = self.mixed.still.take() {
            self.rig.app.insert_sub_app(RenderApp, renderer);
        }
        while self.mixed.keeper.saving.is_some() || self.mixed.keeper.loading {
            self.rig.app.update();
            self.file_events();
        }
        let _ = std::fs::remove_file(&self.mixed.keeper.path);
        let (mover, keeper) = (self.mixed.mover.model, self.mixed.keeper.model);
        let world = self.rig.app.world_mut();
        world.despawn(mover);
        world.despawn(keeper);
        if let Some(picture) = self.mixed.picture.take() {
            world.despawn(picture.tensor);
        }
    }

    fn stop_renderer(&mut self) {
        let renderer = self.rig.app.remove_sub_app(RenderApp).expect("a renderer");
        self.mixed.still = Some((1 + self.random.below(20), renderer));
        self.mixed.pauses += 1;
        // An image that was not extracted in time stays unknown to the renderer.
        if let Some(picture) = self.mixed.picture.take() {
            self.rig.app.world_mut().despawn(picture.tensor);
        }
    }

    /// Loses the device and gets a new one. Tensors without a copy elsewhere are gone; the others keep their values.
    fn lose_device(&mut self) {
        // Everything recorded is submitted, and no tensor is on its way to the other backend. Readbacks may be in
        // flight.
        let (moved, kept) = (self.mixed.mover.tensor, self.mixed.mover.content.clone());
        let receiver = self.rig.record(move |ops| ops.read(moved)).unwrap();
        assert_eq!(self.rig.wait(&receiver).unwrap().to_f32(), kept);
        self.rig.step_until(|app| {
            let figures = app.world().resource::<TensorDiagnostics>().figures();
            figures.batches_waiting_now == 0 && figures.recordings_waiting_now == 0
        });
        assert_eq!(self.rig.faults(), []);
        let before = self.rig.figures().devices;
        self.rig.app.world().resource::<RenderDevice>().wgpu_device().destroy();
        self.rig.step_until(|app| app.world().resource::<TensorDiagnostics>().figures().devices > before);
        for _ in 0..4 {
            self.rig.app.update();
        }
        self.mixed.losses += 1;
        self.last_loss = self.frame;
        // The old device may have been asked for something in between.
        self.rig.app.world_mut().resource_mut::<Faults>().0.clear();
        let world = self.rig.app.world_mut();
        let lost = |world: &World, tensor: Entity| world.get::<Tensor>(tensor).unwrap().residency() == Residency::Lost;
        let gone: Vec<super::Shown> = self.tensors.iter().filter(|shown| lost(world, shown.entity)).copied().collect();
        self.tensors.retain(|shown| !lost(world, shown.entity));
        for shown in &gone {
            world.despawn(shown.entity);
        }
        if lost(world, self.mixed.mover.tensor) {
            world.despawn(self.mixed.mover.model);
            self.mixed.mover = spawn_mover(&mut self.rig);
        }
        gone.into_iter().for_each(|shown| self.forget(shown.storage));
        if let Some(picture) = self.mixed.picture.take() {
            self.rig.app.world_mut().despawn(picture.tensor);
        }
        // A file that arrived in the meantime is what the tensor had before this.
        self.file_events();
        self.write_keeper();
    }

    /// Writes all of the tensor that is saved.
    fn write_keeper(&mut self) {
        let value = self.random.below(500) as f32;
        let content: Vec<f32> = (0..50).map(|i| value + i as f32).collect();
        let model = self.mixed.keeper.model;
        let tensor = self.rig.app.world().get::<bevy_tensor_compute::tensor::ModelTensors>(model).unwrap();
        let tensor = tensor.iter().next().unwrap();
        self.mixed.keeper.content.clone_from(&content);
        self.rig.record(move |ops| ops.write(tensor, &content)).unwrap();
    }

    fn custom(&mut self) {
        let Some(i) = self.any() else { return };
        let (shown, kernel) = (self.tensors[i], self.mixed.kernel.clone());
        self.content(shown).iter_mut().for_each(|v| *v = v.min(900.0) + 1.0);
        let entity = shown.entity;
        self.rig.record(move |ops| ops.store(ops.custom(&kernel, [entity], &())?, entity)).unwrap();
    }

    /// Moves the model to the other backend, changes it or reads it.
    fn move_model(&mut self) {
        let what = self.random.below(3);
        let mover = &mut self.mixed.mover;
        let tensor = mover.tensor;
        match what {
            0 => {
                mover.home = if mover.home == Backend::Gpu { Backend::Cpu } else { Backend::Gpu };
                self.mixed.moves += 1;
                self.rig.app.world_mut().entity_mut(mover.model).insert(ModelBackend(mover.home));
                // A move takes effect at the end of the frame.
                self.rig.app.update();
            }
            1 => {
                mover.content.iter_mut().for_each(|v| *v = (*v + 3.0).rem_euclid(997.0));
                self.rig.record(move |ops| ops.store(ops.modulo(ops.add(tensor, 3.0)?, 997.0)?, tensor)).unwrap();
            }
            _ => {
                let expected = mover.content.clone();
                let receiver = self.rig.record(move |ops| ops.read(tensor)).unwrap();
                self.pending.push(Pending { receiver, expected, asked: self.frame, when: Instant::now() });
            }
        }
    }

    /// Saves or loads the model of the file, or changes it.
    fn files(&mut self) {
        let what = self.random.below(3);
        let keeper = &mut self.mixed.keeper;
        if keeper.saving.is_some() || keeper.loading {
            return;
        }
        let (model, path) = (keeper.model, keeper.path.clone());
        match what {
            0 => {
                keeper.saving = Some(keeper.content.clone());
                with_files(&mut self.rig, |files| files.save(model, path).unwrap());
            }
            1 if keeper.saved.is_some() => {
                keeper.loading = true;
                with_files(&mut self.rig, |files| files.load(model, path, None));
            }
            _ => self.write_keeper(),
        }
    }

    fn file_events(&mut self) {
        let events = core::mem::take(&mut self.rig.app.world_mut().resource_mut::<FileEvents>().0);
        let keeper = &mut self.mixed.keeper;
        for ok in events {
            self.mixed.files += 1;
            match keeper.saving.take() {
                // A save whose readback was lost with the device keeps the file as it was.
                Some(content) if ok => keeper.saved = Some(content),
                Some(_) => assert!(self.mixed.losses > 0, "a file could not be saved"),
                None => {
                    assert!(ok && core::mem::take(&mut keeper.loading), "a file could not be loaded");
                    keeper.content = keeper.saved.clone().unwrap();
                    let tensor = self.rig.app.world().get::<bevy_tensor_compute::tensor::ModelTensors>(keeper.model);
                    let (tensor, expected) = (tensor.unwrap().iter().next().unwrap(), keeper.content.clone());
                    let receiver = self.rig.record(move |ops| ops.read(tensor)).unwrap();
                    self.pending.push(Pending { receiver, expected, asked: self.frame, when: Instant::now() });
                }
            }
        }
    }

    /// Makes a picture's pixels a tensor, or compares those of the last picture.
    fn picture(&mut self) {
        if let Some(shown) = &self.mixed.picture {
            if shown.from > self.frame {
                return;
            }
            let (tensor, pixels) = (shown.tensor, shown.pixels.clone());
            if self.rig.app.world().get::<Tensor>(tensor).is_some() {
                let numbers = self.rig.read(tensor).to_f32();
                assert!(numbers.iter().zip(&pixels).all(|(a, b)| (a - f32::from(*b)).abs() <= 1.0), "a picture");
                self.mixed.pictures += 1;
                self.rig.app.world_mut().despawn(tensor);
                self.mixed.picture = None;
            }
            return;
        }
        let (width, height, seed) = (1 + self.random.below(40), 1 + self.random.below(40), self.random.below(200));
        let pixels: Vec<u8> = (0..width * height * 4).map(|i| (i * 7 + seed) as u8).collect();
        let size = Extent3d { width: width as u32, height: height as u32, depth_or_array_layers: 1 };
        let format = TextureFormat::Rgba8Unorm;
        let image = Image::new(size, TextureDimension::D2, pixels.clone(), format, RenderAssetUsages::default());
        let image = self.rig.app.world_mut().resource_mut::<Assets<Image>>().add(image);
        let tensor = self.rig.app.world_mut().spawn(TensorFromImage { image, live: false }).id();
        let from = self.frame + 30;
        self.mixed.picture = Some(Shown { tensor, pixels, from });
    }
}

fn with_files(rig: &mut Rig, work: impl FnOnce(&mut TensorFiles)) {
    let mut state = SystemState::<TensorFiles>::new(rig.app.world_mut());
    work(&mut state.get_mut(rig.app.world_mut()).expect("the plugin is there"));
    state.apply(rig.app.world_mut());
}

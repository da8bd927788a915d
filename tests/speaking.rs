//! Speakers: batched, paused, cancelled, reproducible, with exactly one end each.

use std::path::{Path, PathBuf};

use bevy::prelude::*;
use bevy_tensor_compute::prelude::*;
use bevy_tensor_compute::text::{Sampler, Say, Speaker, SpeakerOf, TextSettings, TextToken};

use crate::decoder::{Event, Heard, app, load, step_until};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/text")
}

fn spawn(app: &mut App, model: Entity, sampler: Sampler) -> Entity {
    app.world_mut().spawn((Speaker::new(sampler), SpeakerOf(model))).id()
}

fn ends(heard: &Heard) -> usize {
    heard.all().iter().filter(|event| matches!(event, Event::Done(..))).count()
}

/// What a speaker says alone.
fn alone(prompt: &str, sampler: Sampler, tokens: usize) -> Vec<u32> {
    let (mut app, heard) = app(Backend::Cpu, &folder());
    let model = load(&mut app, "llama.gguf", TextSettings::default());
    let speaker = spawn(&mut app, model, sampler);
    app.world_mut().trigger(Say::prompt(speaker, prompt).with_tokens(tokens));
    step_until(&mut app, &heard, |events| events.iter().any(|event| matches!(event, Event::Done(..))));
    heard.ids(speaker)
}

#[test]
fn speakers_of_one_model_say_what_they_would_say_alone() {
    let warm = Sampler { repetition: 1.2, frequency: 0.1, ..Sampler::default() };
    let cases = [
        ("ab", Sampler::greedy()),
        ("a longer prompt than the others", warm.with_seed(7)),
        ("b a", Sampler::default().with_seed(3)),
    ];
    for backend in crate::common::BACKENDS {
        let (mut app, heard) = app(backend, &folder());
        let model = load(&mut app, "llama.gguf", TextSettings::default());
        let speakers = cases.map(|(prompt, sampler)| {
            let speaker = spawn(&mut app, model, sampler);
            app.world_mut().trigger(Say::prompt(speaker, prompt).with_tokens(20));
            speaker
        });
        step_until(&mut app, &heard, |events| {
            events.iter().filter(|event| matches!(event, Event::Done(..))).count() == 3
        });
        for (speaker, (prompt, sampler)) in speakers.into_iter().zip(cases) {
            assert_eq!(heard.ids(speaker), alone(prompt, sampler, 20), "{prompt} on the {backend}");
        }
    }
}

#[test]
fn seeds_are_reproducible_and_differ() {
    let with = |seed| alone("hello", Sampler { temperature: 1.5, ..Sampler::default() }.with_seed(seed), 24);
    assert_eq!(with(1), with(1));
    assert_ne!(with(1), with(2));
}

#[test]
fn steady_generation_builds_nothing() {
    let (mut app, heard) = app(Backend::Cpu, &folder());
    let model = load(&mut app, "llama.gguf", TextSettings { in_flight: 2, ..default() });
    let speakers = [1, 2, 3].map(|seed| spawn(&mut app, model, Sampler::default().with_seed(seed)));
    for speaker in speakers {
        app.world_mut().trigger(Say::prompt(speaker, "hello").with_tokens(90));
    }
    let tokens = |events: &[Event], least: usize| {
        speakers.iter().all(|speaker| {
            events.iter().filter(|event| matches!(event, Event::Token(of, ..) if of == speaker)).count() >= least
        })
    };
    let built = |app: &App| app.world().resource::<TensorDiagnostics>().figures().plans_built;
    step_until(&mut app, &heard, |events| tokens(events, 20));
    let before = built(&app);
    step_until(&mut app, &heard, |events| tokens(events, 70));
    assert_eq!(built(&app), before, "plans were built while generating");
}

#[test]
fn a_paused_speaker_waits_and_a_full_receiver_pauses_it() {
    let (mut app, heard) = app(Backend::Cpu, &folder());
    let model = load(&mut app, "llama.gguf", TextSettings::default());
    let speaker = spawn(&mut app, model, Sampler::greedy());
    let receiver = app.world_mut().get_mut::<Speaker>(speaker).expect("a speaker").listen(4);
    app.world_mut().trigger(Say::prompt(speaker, "hello").with_tokens(30));
    step_until(&mut app, &heard, |events| events.iter().filter(|event| matches!(event, Event::Token(..))).count() == 4);
    (0..50).for_each(|_| app.update());
    assert_eq!(heard.ids(speaker).len(), 4, "nobody takes the tokens");
    let mut pieces = Vec::new();
    app.world_mut().get_mut::<Speaker>(speaker).expect("a speaker").paused = true;
    while let Some(piece) = receiver.try_recv() {
        pieces.push(piece.id);
    }
    (0..50).for_each(|_| app.update());
    while let Some(piece) = receiver.try_recv() {
        pieces.push(piece.id);
    }
    assert!(heard.ids(speaker).len() < 30, "it is paused");
    app.world_mut().get_mut::<Speaker>(speaker).expect("a speaker").paused = false;
    for _ in 0..100_000 {
        app.update();
        while let Some(piece) = receiver.try_recv() {
            pieces.push(piece.id);
        }
        if ends(&heard) == 1 {
            break;
        }
    }
    while let Some(piece) = receiver.try_recv() {
        pieces.push(piece.id);
    }
    assert_eq!(pieces, alone("hello", Sampler::greedy(), 30));
    assert_eq!(heard.done(speaker), ["Length"]);
}

#[test]
fn events_reach_the_speaker_the_model_and_global_observers_once() {
    #[derive(Resource, Default)]
    struct Counts([usize; 3]);
    let (mut app, heard) = app(Backend::Cpu, &folder());
    app.init_resource::<Counts>();
    let count = |i: usize| move |_: On<TextToken>, mut counts: ResMut<Counts>| counts.0[i] += 1;
    app.add_observer(count(0));
    let model = load(&mut app, "llama.gguf", TextSettings::default());
    app.world_mut().entity_mut(model).observe(count(1));
    let speaker = spawn(&mut app, model, Sampler::greedy());
    app.world_mut().entity_mut(speaker).observe(count(2));
    app.world_mut().trigger(Say::prompt(speaker, "hello").with_tokens(5));
    step_until(&mut app, &heard, |events| events.iter().any(|event| matches!(event, Event::Done(..))));
    assert_eq!(app.world().resource::<Counts>().0, [5; 3]);
}

#[test]
fn bad_prompts_end_with_a_reason() {
    let (mut app, heard) = app(Backend::Cpu, &folder());
    let model = load(&mut app, "llama.gguf", TextSettings { context: Some(32), ..default() });
    let cases =
        [("", "empty"), ("a prompt that is much longer than the context of this model allows it to be", "context")];
    for (prompt, says) in cases {
        let speaker = spawn(&mut app, model, Sampler::greedy());
        app.world_mut().trigger(Say::prompt(speaker, prompt));
        step_until(&mut app, &heard, |events| {
            events.iter().any(|e| matches!(e, Event::Done(of, ..) if *of == speaker))
        });
        let done = heard.done(speaker);
        assert!(done.len() == 1 && done[0].contains(says), "{done:?}");
    }
    // A speaker that fills its context ends.
    let speaker = spawn(&mut app, model, Sampler::greedy());
    app.world_mut().trigger(Say::prompt(speaker, "hello").with_tokens(10_000));
    step_until(&mut app, &heard, |events| events.iter().any(|e| matches!(e, Event::Done(of, ..) if *of == speaker)));
    assert_eq!(heard.done(speaker), ["Length"]);
    let lonely = app.world_mut().spawn(Speaker::default()).id();
    app.world_mut().trigger(Say::prompt(lonely, "hello"));
    step_until(&mut app, &heard, |events| events.iter().any(|e| matches!(e, Event::Done(of, ..) if *of == lonely)));
    assert!(heard.done(lonely)[0].contains("no model"));
}

#[test]
fn random_despawns_and_new_prompts_give_exactly_one_end_each() {
    let (mut app, heard) = app(Backend::Cpu, &folder());
    let mut state = 0x1234_5678u32;
    let mut random = move |below: u32| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state % below
    };
    let mut model = load(&mut app, "llama.gguf", TextSettings::default());
    let mut speakers: Vec<Entity> = Vec::new();
    let mut said = 0;
    for round in 0..1000 {
        match random(10) {
            0..4 => {
                let speaker = spawn(&mut app, model, Sampler::default().with_seed(round));
                app.world_mut().trigger(Say::prompt(speaker, "hello you").with_tokens(1 + random(12) as usize));
                said += 1;
                speakers.push(speaker);
            }
            4..6 if !speakers.is_empty() => {
                let speaker = speakers.swap_remove(random(speakers.len() as u32) as usize);
                app.world_mut().despawn(speaker);
            }
            6 if !speakers.is_empty() => {
                let speaker = speakers[random(speakers.len() as u32) as usize];
                app.world_mut().trigger(Say::prompt(speaker, "again").with_tokens(5));
                said += 1;
            }
            7 if !speakers.is_empty() => {
                let speaker = speakers[random(speakers.len() as u32) as usize];
                let mut speaker = app.world_mut().get_mut::<Speaker>(speaker).expect("a speaker");
                speaker.paused = !speaker.paused;
            }
            8 if random(12) == 0 => {
                // Despawns its speakers too.
                app.world_mut().despawn(model);
                speakers.clear();
                model = load(&mut app, "llama.gguf", TextSettings::default());
            }
            _ => app.update(),
        }
        if speakers.len() > 6 {
            let speaker = speakers.swap_remove(0);
            app.world_mut().despawn(speaker);
        }
        app.update();
    }
    app.world_mut().despawn(model);
    (0..10).for_each(|_| app.update());
    assert_eq!(ends(&heard), said);
    let world = app.world_mut();
    assert_eq!(world.query::<&Tensor>().iter(world).count(), 0, "tensors are left");
}

//! Which form of a kernel is fastest here: what was measured, what was chosen. Decisions only; `gpu/` measures.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::kernel::Variant;

/// One form of a kernel and what it took.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedForm {
    /// The form.
    pub variant: String,
    /// The median of its runs; `None` if it was left out: it did not compile, gave other results, or took longer than the budget.
    pub time: Option<Duration>,
    /// Why it was left out.
    pub left_out: Option<String>,
}

/// What measuring a kernel at one size found.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneOutcome {
    /// The kernel, its types and its sizes up to the next power of two: launches of this description take the chosen form.
    pub bucket: String,
    /// The kernel.
    pub kernel: &'static str,
    /// What it would be without measuring.
    pub default: String,
    /// What it is from now on.
    pub chosen: String,
    /// All forms, the default first.
    pub forms: Vec<TunedForm>,
}

/// A choice that was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedChoice {
    /// The form.
    pub variant: String,
    /// What it took.
    pub time: Duration,
}

/// The measured choices, by [`TuneOutcome::bucket`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TuningTable {
    /// In order of their descriptions.
    pub choices: BTreeMap<String, TunedChoice>,
}

impl TuningTable {
    pub(crate) fn get(&self, bucket: &str) -> Option<Variant> {
        self.choices.get(bucket).and_then(|choice| Variant::named(&choice.variant))
    }

    pub(crate) fn to_json(&self) -> serde_json::Value {
        let choice = |(bucket, choice): (&String, &TunedChoice)| {
            (bucket.clone(), serde_json::json!([choice.variant, choice.time.as_nanos() as u64]))
        };
        serde_json::Value::Object(self.choices.iter().map(choice).collect())
    }

    /// `None` if it is no table; forms that this version does not know are left out.
    pub(crate) fn from_json(json: &serde_json::Value) -> Option<Self> {
        let mut choices = BTreeMap::new();
        for (bucket, choice) in json.as_object()? {
            let (variant, nanos) = (choice.get(0)?.as_str()?, choice.get(1)?.as_u64()?);
            if Variant::named(variant).is_some() {
                let choice = TunedChoice { variant: variant.to_owned(), time: Duration::from_nanos(nanos) };
                choices.insert(bucket.clone(), choice);
            }
        }
        Some(Self { choices })
    }
}

/// The middle of some samples.
pub(crate) fn median(samples: &[u64]) -> Option<u64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

/// The number of the fastest by its median; the first, which is the default, unless another is faster.
pub(crate) fn fastest(medians: &[Option<u64>]) -> Option<usize> {
    (0..medians.len()).filter(|&i| medians[i].is_some()).min_by_key(|&i| medians[i])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_wins_and_the_default_wins_a_draw() {
        assert_eq!(fastest(&[Some(5), Some(3), None, Some(3)]), Some(1));
        assert_eq!(fastest(&[Some(4), Some(4)]), Some(0));
        assert_eq!(fastest(&[None, None]), None);
        assert_eq!((median(&[9, 1, 5]), median(&[])), (Some(5), None));
    }

    #[test]
    fn a_table_survives_its_file_and_forgets_forms_that_are_gone() {
        let choice = |variant: &str| TunedChoice { variant: variant.to_owned(), time: Duration::from_micros(7) };
        let choices = [("a".to_owned(), choice("row thread")), ("b".to_owned(), choice("gone"))].into();
        let read = TuningTable::from_json(&TuningTable { choices }.to_json()).unwrap();
        assert_eq!(read.get("a"), Some(Variant::RowThread));
        assert_eq!(read.choices.len(), 1);
        assert_eq!(TuningTable::from_json(&serde_json::json!({ "a": 1 })), None);
    }
}

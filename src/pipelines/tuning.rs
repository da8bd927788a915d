//! Tuning results: which variant of a kernel is fastest. `gpu/` does the measuring.

use core::time::Duration;
use std::collections::BTreeMap;

use crate::kernel::Variant;

/// One variant of a kernel, and its measured time.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedForm {
    /// Name of the variant.
    pub variant: String,
    /// Median time. `None` if the variant was rejected: it did not compile, returned different results, or exceeded the
    /// time budget.
    pub time: Option<Duration>,
    /// Why the variant was rejected.
    pub left_out: Option<String>,
}

/// The result of tuning a kernel for one size bucket.
#[derive(Clone, Debug, PartialEq)]
pub struct TuneOutcome {
    /// Describes the kernel, its types, and its sizes rounded up to powers of two. All launches with the same
    /// description use the chosen variant.
    pub bucket: String,
    /// The kernel.
    pub kernel: &'static str,
    /// The default variant.
    pub default: String,
    /// The fastest variant, which is now in use.
    pub chosen: String,
    /// All variants, the default first.
    pub forms: Vec<TunedForm>,
}

/// A variant that was chosen by measuring.
#[derive(Clone, Debug, PartialEq)]
pub struct TunedChoice {
    /// Name of the variant.
    pub variant: String,
    /// Its median time.
    pub time: Duration,
}

/// The chosen variants, by [`TuneOutcome::bucket`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TuningTable {
    /// Ordered by bucket.
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

    /// Returns `None` if the JSON is not a table. Variants that this version does not know are left out.
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

/// The median of the samples.
pub(crate) fn median(samples: &[u64]) -> Option<u64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

/// Index of the smallest median. On a tie, the first one, which is the default.
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

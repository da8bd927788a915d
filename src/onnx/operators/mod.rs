//! The operators, one file per family. Each family has a list; [`find`] looks an operator up by domain and name.

mod attention;
mod binary;
mod einsum;
mod elementwise;
mod generate;
mod host_only;
mod indexing;
mod loss;
mod matmul;
mod microsoft;
mod norm;
mod quantise;
mod random;
mod recurrent;
mod reduce;
mod resample;
mod sampling;
mod sequence;
mod shapes;
mod signal;
mod types;
mod windows;

use std::collections::HashMap;
use std::sync::OnceLock;

use super::call::{Call, Outputs, Stop};
use super::graph::Node;

/// Records a node on the device.
pub(crate) type Record = for<'a> fn(&Call<'a>) -> Outputs<'a>;
/// Refuses a node when the model is loaded, by its attributes and its number of inputs.
pub(crate) type Check = fn(&Node) -> Result<(), String>;

/// An operator of ONNX and how it runs.
///
/// If the host can compute it too, a node runs on the host if all its inputs are host values that do not come from float
/// inputs of the model. Without `record` its inputs are read back if a device computed them. The host's operators are in
/// [`host_ops`](super::host_ops).
#[derive(Debug)]
pub(crate) struct Operator {
    /// Empty for the standard operators.
    pub domain: &'static str,
    pub name: &'static str,
    /// The versions of the operator set in which it is supported: from the first to the last, inclusive.
    pub versions: (i64, i64),
    pub record: Option<Record>,
    pub check: Option<Check>,
    /// Operators that contain graphs are run by the runner itself.
    pub control: Option<Control>,
}

/// Operators that the runner itself runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    If,
    Loop,
    Scan,
    SequenceMap,
}

impl Operator {
    /// A standard operator, supported in all versions of the operator set.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { domain: "", name, versions: (1, i64::MAX), record: None, check: None, control: None }
    }

    /// An operator of another domain.
    pub(crate) const fn of(domain: &'static str, name: &'static str) -> Self {
        Self { domain, ..Self::new(name) }
    }

    /// How a node is recorded on the device.
    pub(crate) const fn record(self, record: Record) -> Self {
        Self { record: Some(record), ..self }
    }

    /// What is refused when a model is loaded.
    pub(crate) const fn check(self, check: Check) -> Self {
        Self { check: Some(check), ..self }
    }

    /// The first version of the operator set in which it is supported.
    pub(crate) const fn since(self, version: i64) -> Self {
        Self { versions: (version, self.versions.1), ..self }
    }

    const fn control(name: &'static str, control: Control) -> Self {
        Self { control: Some(control), ..Self::new(name).check(has_graphs) }
    }
}

/// Refuses a node without the graphs that it runs.
fn has_graphs(node: &Node) -> Result<(), String> {
    let graphs: &[&str] = match node.operator.control {
        Some(Control::If) => &["then_branch", "else_branch"],
        Some(Control::Loop | Control::Scan | Control::SequenceMap) => &["body"],
        None => &[],
    };
    match graphs.iter().find(|name| node.graph(name).is_none()) {
        Some(missing) => Err(format!("the graph \"{missing}\" is missing")),
        None => Ok(()),
    }
}

/// Operators with graphs in their attributes.
const CONTROL: &[Operator] = &[
    Operator::control("If", Control::If),
    Operator::control("Loop", Control::Loop),
    Operator::control("Scan", Control::Scan).since(9),
    Operator::control("SequenceMap", Control::SequenceMap),
];

/// All families.
const FAMILIES: &[&[Operator]] = &[
    CONTROL,
    attention::OPERATORS,
    binary::OPERATORS,
    einsum::OPERATORS,
    elementwise::OPERATORS,
    generate::OPERATORS,
    host_only::OPERATORS,
    indexing::OPERATORS,
    loss::OPERATORS,
    matmul::OPERATORS,
    norm::OPERATORS,
    quantise::OPERATORS,
    random::OPERATORS,
    recurrent::OPERATORS,
    reduce::OPERATORS,
    resample::OPERATORS,
    sampling::OPERATORS,
    sequence::OPERATORS,
    shapes::OPERATORS,
    signal::OPERATORS,
    types::OPERATORS,
    windows::OPERATORS,
];

/// All operators.
pub(crate) fn all() -> impl Iterator<Item = &'static Operator> {
    FAMILIES.iter().chain(&microsoft::FAMILIES).flat_map(|family| family.iter())
}

/// The operator with this name, or why there is none.
pub(crate) fn find(domain: &str, name: &str, version: i64) -> Result<&'static Operator, String> {
    static TABLE: OnceLock<HashMap<(&'static str, &'static str), Vec<&'static Operator>>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut table: HashMap<_, Vec<_>> = HashMap::new();
        for operator in all() {
            table.entry((operator.domain, operator.name)).or_default().push(operator);
        }
        table
    });
    let domain = if domain == "ai.onnx" { "" } else { domain };
    let Some(rows) = table.get(&(domain, name)) else { return Err("the operator is not supported".to_owned()) };
    let fits = |row: &&&Operator| (row.versions.0..=row.versions.1).contains(&version);
    rows.iter().find(fits).copied().ok_or_else(|| format!("version {version} of the operator is not supported"))
}

/// An operator that is not implemented for an input.
pub(crate) fn refuse<T>(reason: impl Into<String>) -> Result<T, Stop> {
    Err(Stop::Unsupported(reason.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::onnx::host_ops;

    /// The rows of the table in `docs/onnx.md`.
    fn rows() -> String {
        let mut rows: Vec<String> = all()
            .map(|operator| {
                let domain = if operator.domain.is_empty() { "ai.onnx" } else { operator.domain };
                let versions = match operator.versions {
                    (1, i64::MAX) => "all".to_owned(),
                    (first, i64::MAX) => format!("{first} and later"),
                    (1, last) => format!("to {last}"),
                    (first, last) => format!("{first} to {last}"),
                };
                let host = host_ops::find(operator).is_some();
                let runs = match (operator.record.is_some() || operator.control.is_some(), host) {
                    (true, true) => "device, host",
                    (true, false) => "device",
                    (false, _) => "host",
                };
                format!("| {domain} | `{}` | {versions} | {runs} |\n", operator.name)
            })
            .collect();
        rows.sort();
        format!("| domain | operator | versions | runs on |\n|---|---|---|---|\n{}", rows.concat())
    }

    /// With `ONNX_DOCS` set, writes the table.
    #[test]
    fn the_docs_list_every_operator() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/onnx.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once("<!-- operators -->\n").unwrap();
        let (table, after) = rest.split_once("<!-- end of operators -->").unwrap();
        if std::env::var_os("ONNX_DOCS").is_some() {
            let text = format!("{before}<!-- operators -->\n{}<!-- end of operators -->{after}", rows());
            std::fs::write(path, text).unwrap();
        } else {
            assert_eq!(table, rows(), "run this test with ONNX_DOCS=1 to write the table");
        }
    }

    #[test]
    fn every_operator_runs_somewhere_and_is_listed_once() {
        let mut seen = std::collections::HashSet::new();
        for operator in all() {
            let host = host_ops::find(operator).is_some();
            assert!(host || operator.record.is_some() || operator.control.is_some(), "{}", operator.name);
            assert!(seen.insert((operator.domain, operator.name, operator.versions)), "{} twice", operator.name);
        }
    }
}

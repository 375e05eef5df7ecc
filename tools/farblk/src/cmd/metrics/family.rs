// SPDX-License-Identifier: GPL-2.0
//! Metric families, and their text.
//!
//! The text is OpenMetrics 1.0. The textfile collector of node_exporter reads an older format, and
//! refuses a file with a type that this has not. Hence there are no types but those of both, and no
//! timestamps.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Type {
    /// It only grows, until it begins anew.
    Counter,
    /// It goes up and down.
    Gauge,
    /// It counts by size.
    Histogram,
}

/// A value.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
#[serde(untagged)]
pub enum Value {
    /// A count.
    Count(u64),
    /// Any other number; finite.
    Number(f64),
}

impl From<u64> for Value {
    fn from(count: u64) -> Self {
        Self::Count(count)
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// A value with its labels.
#[derive(JsonSchema, Serialize)]
pub struct Point {
    /// The name of the family, with a suffix.
    name: String,
    labels: BTreeMap<&'static str, String>,
    value: Value,
}

/// A metric family.
#[derive(JsonSchema, Serialize)]
pub struct Family {
    name: String,
    r#type: Type,
    /// What a value counts; "" for events and other things.
    unit: &'static str,
    help: String,
    /// The values.
    pub samples: Vec<Point>,
}

impl Family {
    /// A family without values. The unit is the end of the name.
    pub fn new(name: &str, r#type: Type, help: &str) -> Self {
        let unit = ["seconds", "bytes"]
            .into_iter()
            .find(|unit| name.ends_with(&format!("_{unit}")));
        Self {
            name: name.to_owned(),
            r#type,
            unit: unit.unwrap_or_default(),
            help: format!("{help}."),
            samples: Vec::new(),
        }
    }

    /// Adds a value.
    pub fn with(self, labels: &[(&'static str, String)], value: impl Into<Value>) -> Self {
        let suffix = match self.r#type {
            Type::Counter => "_total",
            _ => "",
        };
        self.with_suffix(suffix, labels, value)
    }

    /// Adds a value of a histogram.
    pub fn with_suffix(
        mut self,
        suffix: &str,
        labels: &[(&'static str, String)],
        value: impl Into<Value>,
    ) -> Self {
        self.samples.push(Point {
            name: format!("{}{suffix}", self.name),
            labels: labels.iter().cloned().collect(),
            value: value.into(),
        });
        self
    }
}

/// Escapes the value of a label.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// The families as OpenMetrics text.
pub fn text(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        let name = &family.name;
        let kind = match family.r#type {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        text += &format!("# TYPE {name} {kind}\n");
        if !family.unit.is_empty() {
            text += &format!("# UNIT {name} {}\n", family.unit);
        }
        text += &format!("# HELP {name} {}\n", escape(&family.help));
        for point in &family.samples {
            let labels: Vec<_> = point
                .labels
                .iter()
                .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
                .collect();
            let labels = match labels.is_empty() {
                true => String::new(),
                false => format!("{{{}}}", labels.join(",")),
            };
            text += &format!("{}{labels} {}\n", point.name, point.value);
        }
    }
    text + "# EOF\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let labels = [("a", "x\"\\\ny".to_owned()), ("b", String::new())];
        let family = Family::new("f_bytes", Type::Counter, "Help").with(&labels, 3u64);
        let want = "# TYPE f_bytes counter\n# UNIT f_bytes bytes\n# HELP f_bytes Help.\n\
                    f_bytes_total{a=\"x\\\"\\\\\\ny\",b=\"\"} 3\n# EOF\n";
        assert_eq!(text(&[family]), want);
        assert_eq!(Value::from(1.5e-6).to_string(), "0.0000015");
    }
}

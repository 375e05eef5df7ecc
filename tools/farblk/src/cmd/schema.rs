// SPDX-License-Identifier: GPL-2.0
//! `farblk schema`: the JSON Schemas of the documents that the tool prints.
//!
//! Each schema is made from the struct that is printed. The unit tests validate every document by
//! them, and compare them with the files in `schemas/`.

use schemars::generate::SchemaSettings;
use schemars::transform::transform_subschemas;
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Value, json};

use super::config::{self, check, restore, save};
use super::{
    Context, demo, discover, doctor, events, explain, export, key, list, map, metrics, path, ping,
    port, report, stats, udev, unit, version,
};
use crate::cli;
use crate::error::{self, Code, Error};
use crate::name;
use crate::output::{self, table};

/// The name of a schema, and what makes it.
type Row = (&'static str, fn() -> Schema);

/// All schemas. Each document has the name of its schema in the member `schema`.
const SCHEMAS: &[Row] = &[
    ("farblk.config-check/1", make::<check::Document>),
    ("farblk.config-diff/1", make::<config::DiffDocument>),
    ("farblk.config-restore/1", make::<restore::Document>),
    ("farblk.config-save/1", make::<save::Document>),
    ("farblk.config/1", make::<config::ShowDocument>),
    ("farblk.demo/1", make::<demo::Document>),
    ("farblk.discover/1", make::<discover::Document>),
    ("farblk.doctor/1", make::<doctor::Document>),
    ("farblk.dry-run/1", make::<super::Script>),
    ("farblk.error/1", make::<error::Document>),
    ("farblk.event/1", make::<events::Event>),
    ("farblk.explain/1", make::<explain::Document>),
    ("farblk.export-list/1", make::<export::ListDocument>),
    ("farblk.export/1", make::<export::ExportDocument<'static>>),
    ("farblk.key/1", make::<key::Document>),
    ("farblk.list/1", make::<list::Document>),
    ("farblk.map/1", make::<map::Document>),
    ("farblk.metrics/1", make::<metrics::Document>),
    ("farblk.path-list/1", make::<path::ListDocument<'static>>),
    ("farblk.path/1", make::<path::Document<'static>>),
    ("farblk.ping/2", make::<ping::Document>),
    ("farblk.port-list/1", make::<port::ListDocument>),
    ("farblk.port/1", make::<port::PortDocument<'static>>),
    ("farblk.removed/1", make::<super::Removed<'static>>),
    ("farblk.report/1", make::<report::Document>),
    ("farblk.schema-list/1", make::<Document>),
    ("farblk.stats/1", make::<stats::Document<'static>>),
    ("farblk.udev/1", make::<udev::Document>),
    ("farblk.unit/1", make::<unit::Document<'static>>),
    ("farblk.version/1", make::<version::Document>),
    ("farblk.warning/1", make::<output::Warning<'static>>),
    ("farblk.written/1", make::<metrics::Written<'static>>),
];

/// The schemas, schema `farblk.schema-list/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    schemas: Vec<Entry>,
}

/// A schema.
#[derive(JsonSchema, Serialize)]
struct Entry {
    name: &'static str,
    /// What a document of this schema holds.
    description: String,
}

/// Makes the schema of the documents that are printed from `T`.
fn make<T: JsonSchema>() -> Schema {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    settings.into_generator().into_root_schema_for::<T>()
}

/// Refuses members that an object does not name, at any depth.
fn close(schema: &mut Schema) {
    transform_subschemas(&mut close, schema);
    let has = |keyword: &str| schema.get(keyword).is_some();
    if has("properties") {
        // `additionalProperties` does not see the members that a subschema allows.
        let keyword = match ["$ref", "allOf", "anyOf", "oneOf"].into_iter().any(has) {
            true => "unevaluatedProperties",
            false => "additionalProperties",
        };
        schema.insert(keyword.to_owned(), false.into());
    }
}

/// Returns the finished schema of a row.
fn finish((name, make): &Row) -> Value {
    let mut schema = make();
    close(&mut schema);
    schema.insert("title".into(), (*name).into());
    let licence = "SPDX-License-Identifier: GPL-2.0";
    schema.insert("$comment".into(), licence.into());
    let mut schema = schema.to_value();
    schema["properties"]["schema"] = json!({ "const": name });
    schema
}

/// Returns the row that the user means: "farblk.list/1", "list/1" or "list".
fn find(wanted: &str) -> Option<&'static Row> {
    let names = |name: &'static str| {
        let short = name.strip_prefix("farblk.").unwrap_or(name);
        let (noun, _) = short.split_once('/').unwrap_or((short, ""));
        [name, short, noun]
    };
    SCHEMAS
        .iter()
        .find(|(name, _)| names(name).contains(&wanted))
}

/// Runs `farblk schema`. It needs no module.
pub fn run(context: &Context, command: &cli::Schema) -> Result<(), Error> {
    match command {
        cli::Schema::List => list(context),
        cli::Schema::Show { name } => show(context, name),
    }
}

fn list(context: &Context) -> Result<(), Error> {
    let entry = |row: &Row| Entry {
        name: row.0,
        description: description(&finish(row)),
    };
    let schemas: Vec<_> = SCHEMAS.iter().map(entry).collect();
    if context.output.is_json() {
        return context.output.document(&Document {
            schema: "farblk.schema-list/1",
            schemas,
        });
    }
    let row = |entry: &Entry| vec![entry.name.to_owned(), entry.description.clone()];
    let rows: Vec<_> = schemas.iter().map(row).collect();
    table(&["SCHEMA", "DESCRIPTION"], &rows)
        .iter()
        .try_for_each(|line| context.output.line(line))
}

/// Returns the description of a schema, without its name.
fn description(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default();
    let (text, _) = text.split_once(", schema `").unwrap_or((text, ""));
    text.to_owned()
}

/// Prints a schema, which is no document of this tool itself: it is always JSON, for people on
/// several lines.
fn show(context: &Context, wanted: &str) -> Result<(), Error> {
    let Some(row) = find(wanted) else {
        let names: Vec<_> = SCHEMAS.iter().map(|(name, _)| (*name).to_owned()).collect();
        let meant = match name::nearest(wanted, &names) {
            Some(meant) => format!("  # did you mean {meant}?"),
            None => String::new(),
        };
        let why = format!("there is no schema {wanted:?}");
        return Err(Error::new(Code::NotFound, "cannot show the schema", why)
            .hint(format!("farblk schema list{meant}")));
    };
    let schema = finish(row);
    match context.output.is_json() {
        true => context.output.document(&schema),
        false => context.output.line(&format!("{schema:#}")),
    }
}

/// Panics if a document that a unit test prints does not obey its schema.
#[cfg(test)]
pub fn check(text: &str) {
    let document: Value = serde_json::from_str(text).expect("JSON");
    // A schema is no document.
    let Some(name) = document["schema"].as_str() else {
        assert!(
            document["$schema"].is_string(),
            "a document without a schema: {text}"
        );
        return;
    };
    let row = SCHEMAS.iter().find(|row| row.0 == name);
    let row = row.unwrap_or_else(|| panic!("{name} is not in the list of cmd/schema.rs: {text}"));
    let validator = jsonschema::draft202012::new(&finish(row)).expect("a schema");
    let errors: Vec<_> = validator
        .iter_errors(&document)
        .map(|error| format!("{}: {error}", error.instance_path))
        .collect();
    assert!(errors.is_empty(), "{text}: {}", errors.join("; "));
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The members that a document may omit.
    const OPTIONAL: &[(&str, &str)] = &[("farblk.removed/1", "map")];

    /// Calls `visit` with each subschema that has members.
    fn objects(schema: &Value, visit: &mut dyn FnMut(&Value)) {
        match schema {
            Value::Object(members) => {
                if members.contains_key("properties") {
                    visit(schema);
                }
                members.values().for_each(|value| objects(value, visit));
            }
            Value::Array(values) => values.iter().for_each(|value| objects(value, visit)),
            _ => {}
        }
    }

    #[test]
    fn names_are_in_order() {
        for (index, (name, _)) in SCHEMAS.iter().enumerate() {
            assert!(index == 0 || SCHEMAS[index - 1].0 < *name, "{name}");
            assert!(name.starts_with("farblk.") && name.contains('/'), "{name}");
        }
        assert_eq!(find("list").map(|row| row.0), Some("farblk.list/1"));
        assert_eq!(find("map/1").map(|row| row.0), Some("farblk.map/1"));
        assert!(find("maps").is_none());
    }

    #[test]
    fn every_member_is_required_and_no_other_is_allowed() {
        for row in SCHEMAS {
            let schema = finish(row);
            assert!(jsonschema::meta::is_valid(&schema), "{}", row.0);
            assert!(
                !description(&schema).is_empty(),
                "{}: no description",
                row.0
            );
            let mut count = 0;
            objects(&schema, &mut |object| {
                count += 1;
                let closed = ["additionalProperties", "unevaluatedProperties"];
                assert!(
                    closed.iter().any(|word| object[word] == false),
                    "{}: {object}",
                    row.0
                );
                let required = object["required"].as_array().cloned().unwrap_or_default();
                for member in object["properties"].as_object().expect("members").keys() {
                    assert!(
                        required.contains(&json!(member))
                            || OPTIONAL.contains(&(row.0, member.as_str())),
                        "{}: {member} is not required",
                        row.0
                    );
                }
            });
            assert!(count > 0, "{}", row.0);
        }
    }

    /// A member that is removed or renamed breaks the scripts of users: that needs a new version
    /// of the schema. Write the files anew with `SNAPSHOTS=overwrite cargo test`.
    #[test]
    fn schemas_are_those_of_the_files() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("schemas");
        let overwrite = std::env::var("SNAPSHOTS").is_ok_and(|value| value == "overwrite");
        let mut files = Vec::new();
        for row in SCHEMAS {
            let name = row.0.trim_start_matches("farblk.").replace('/', "-") + ".json";
            let file = folder.join(&name);
            let want = format!("{:#}\n", finish(row));
            if overwrite {
                fs::create_dir_all(&folder).expect("a folder");
                fs::write(&file, &want).expect("a file");
            }
            let have = fs::read_to_string(&file).unwrap_or_default();
            assert!(have == want, "{} differs:\n{want}", file.display());
            files.push(name);
        }
        let kept = fs::read_dir(&folder).expect("the folder").flatten();
        let mut kept: Vec<_> = kept
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        kept.sort();
        files.sort();
        assert_eq!(kept, files, "the files of {}", folder.display());
    }

    #[test]
    fn a_removed_member_is_noticed() {
        let text = r#"{"schema":"farblk.version/1","tool":"1","module":{"version":"1",
            "protocol":1,"features":[]}}"#;
        check(text);
        for (from, to) in [
            (r#""tool":"1","#, ""),
            (r#""protocol":1,"#, ""),
            (r#""protocol":1"#, r#""protocol":"1""#),
            (r#""tool":"1""#, r#""tool":"1","more":1"#),
            ("version/1", "version/2"),
        ] {
            assert!(text.contains(from));
            let bad = text.replace(from, to);
            std::panic::catch_unwind(|| check(&bad)).expect_err(&bad);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0
//! `farblk version`: the versions of the tool and of the module that is loaded.

use schemars::JsonSchema;
use serde::Serialize;

use super::Context;
use crate::error::Error;

/// The versions, schema `farblk.version/1`.
#[derive(JsonSchema, Serialize)]
pub struct Document {
    schema: &'static str,
    tool: &'static str,
    /// `None` if there is no module.
    module: Option<Module>,
}

/// The module that is loaded.
#[derive(JsonSchema, Serialize)]
struct Module {
    version: String,
    /// The newest version of the wire protocol that it speaks.
    protocol: Option<u32>,
    features: Vec<String>,
}

/// Runs `farblk version`. That there is no module is no error.
pub fn run(context: &Context) -> Result<(), Error> {
    let configfs = &context.configfs;
    let root = configfs.path(&[]);
    let features = configfs.attr(&root, "features").unwrap_or_default();
    let module = configfs.attr(&root, "version").map(|version| Module {
        version,
        protocol: configfs.number(&root, "protocol"),
        features: features.split_whitespace().map(str::to_owned).collect(),
    });
    let tool = env!("CARGO_PKG_VERSION");
    if context.output.is_json() {
        return context.output.document(&Document {
            schema: "farblk.version/1",
            tool,
            module,
        });
    }
    context.output.line(&format!("tool    {tool}"))?;
    let text = match (module, configfs.require()) {
        (Some(module), _) => {
            let protocol = module.protocol.unwrap_or_default();
            let features = module.features.join(" ");
            format!(
                "{}, protocol {protocol}, features: {features}",
                module.version
            )
        }
        (None, Err(error)) => format!("- ({error})"),
        (None, Ok(())) => "-".into(),
    };
    context.output.line(&format!("module  {text}"))
}

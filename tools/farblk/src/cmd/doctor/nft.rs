// SPDX-License-Identifier: GPL-2.0
//! Follows a packet of RoCE through the rules that `nft -j list ruleset` prints.

use serde_json::Value;

use super::firewall::{Decision, ROCE_PORT, Truth, Walk, owner};
use crate::quote;

/// How deep chains may jump. The kernel allows 16.
const DEPTH_MAX: u32 = 16;

/// The packet at a hook.
struct Packet<'a> {
    netdev: &'a str,
    /// True if this host sends it.
    is_output: bool,
}

/// The end of a chain.
enum End {
    Accepted,
    /// By the rule of this name.
    Dropped(String),
    /// The next rule of the chain before follows.
    Return,
}

/// Returns what is decided about a packet that `netdev` receives and about one that it sends, in
/// each base chain; `None` if the text cannot be parsed.
pub fn decisions(text: &str, netdev: &str) -> Option<Vec<Decision>> {
    let root: Value = serde_json::from_str(text).ok()?;
    let objects = root["nftables"].as_array()?;
    let chains = objects
        .iter()
        .map(|object| &object["chain"])
        .filter(|chain| chain.is_object());
    let mut decisions = Vec::new();
    for chain in chains {
        let (hook, kind) = (chain["hook"].as_str(), chain["type"].as_str());
        let family = chain["family"].as_str().unwrap_or_default();
        let is_output = match hook {
            Some("input" | "prerouting" | "ingress") => false,
            Some("output" | "postrouting" | "egress") => true,
            _ => continue,
        };
        // Of other families no packet of IPv4 comes by; chains of type nat do not filter.
        let is_ours = match family {
            "ip" | "inet" => true,
            "netdev" => names_netdev(&chain["dev"], netdev),
            _ => false,
        };
        if !is_ours || kind == Some("nat") || is_of_iptables(objects, chain) {
            continue;
        }
        let rules = Rules {
            objects,
            chain,
            packet: Packet { netdev, is_output },
        };
        decisions.push(rules.decision());
    }
    Some(decisions)
}

fn names_netdev(value: &Value, netdev: &str) -> bool {
    match value {
        Value::Array(names) => names.iter().any(|name| name == netdev),
        name => name == netdev,
    }
}

/// Returns true if the chain belongs to a table of iptables-nft: `iptables-save` shows its rules
/// better.
fn is_of_iptables(objects: &[Value], chain: &Value) -> bool {
    let is_upper = |name: &str| name.chars().all(|c| c.is_ascii_uppercase());
    let table = ["filter", "mangle", "raw", "security", "nat"]
        .contains(&chain["table"].as_str().unwrap_or_default());
    let in_capitals = chain["name"].as_str().is_some_and(is_upper);
    let uses_xt = |object: &Value| {
        let rule = &object["rule"];
        let is_same = rule["table"] == chain["table"] && rule["family"] == chain["family"];
        let statements = rule["expr"].as_array();
        is_same && statements.is_some_and(|list| list.iter().any(|one| one.get("xt").is_some()))
    };
    chain["family"] == "ip" && table && (in_capitals || objects.iter().any(uses_xt))
}

/// The rules as they are for one base chain.
struct Rules<'a> {
    objects: &'a [Value],
    chain: &'a Value,
    packet: Packet<'a>,
}

impl Rules<'_> {
    fn place(&self, chain: &str) -> String {
        let text = |key: &str| self.chain[key].as_str().unwrap_or_default();
        format!(
            "chain {chain} of table {} {} (nftables)",
            text("family"),
            text("table")
        )
    }

    fn decision(&self) -> Decision {
        let text = |key: &str| self.chain[key].as_str().unwrap_or_default();
        let mut walk = Walk::default();
        let by = match self.follow(text("name"), &mut walk, 0) {
            End::Dropped(by) => Some(by),
            End::Return if text("policy") == "drop" => {
                Some(format!("the policy of {}", self.place(text("name"))))
            }
            _ => None,
        };
        walk.end(by, || self.cure())
    }

    /// The command that accepts the packet at the head of the base chain.
    fn cure(&self) -> String {
        let text = |key: &str| self.chain[key].as_str().unwrap_or_default();
        let in_table = |object: &Value| {
            let chain = &object["chain"];
            chain["table"] == self.chain["table"] && chain["family"] == self.chain["family"]
        };
        let names: Vec<_> = self
            .objects
            .iter()
            .filter(|object| in_table(object))
            .filter_map(|object| object["chain"]["name"].as_str())
            .collect();
        owner(text("table"), &names).unwrap_or_else(|| {
            let [family, table, name] =
                ["family", "table", "name"].map(|key| quote::word(text(key)));
            format!("nft insert rule {family} {table} {name} udp dport {ROCE_PORT} accept")
        })
    }

    /// Follows the packet through a chain.
    fn follow(&self, chain: &str, walk: &mut Walk, depth: u32) -> End {
        let is_of_chain = |rule: &&Value| {
            rule["chain"] == chain
                && rule["table"] == self.chain["table"]
                && rule["family"] == self.chain["family"]
        };
        let rules = self
            .objects
            .iter()
            .map(|object| &object["rule"])
            .filter(is_of_chain);
        for rule in rules {
            let name = format!("rule {} in {}", rule["handle"], self.place(chain));
            let mut applies = Truth::Yes;
            for statement in rule["expr"].as_array().into_iter().flatten() {
                let Some((key, value)) = statement
                    .as_object()
                    .and_then(|object| object.iter().next())
                else {
                    continue;
                };
                match self.statement(key, value, &name, applies, walk, depth) {
                    Step::Truth(truth) => applies = applies.and(truth),
                    Step::End(end) => return end,
                    Step::Next => {}
                }
                if applies == Truth::No {
                    break;
                }
            }
        }
        End::Return
    }

    /// Follows one statement of a rule of which so far `applies` is known.
    fn statement(
        &self,
        key: &str,
        value: &Value,
        rule: &str,
        applies: Truth,
        walk: &mut Walk,
        depth: u32,
    ) -> Step {
        match key {
            "match" => Step::Truth(self.is_match(value)),
            "vmap" => self.map(value, rule, applies, walk, depth),
            "accept" | "drop" | "reject" | "jump" | "goto" | "return" => {
                self.decide(key, value, rule, applies, walk, depth)
            }
            // They change no decision.
            "counter" | "log" | "notrack" | "mangle" | "comment" | "meta" | "ct" | "set"
            | "map" | "ct helper" | "ct timeout" | "flow" | "secmark" => Step::Next,
            // Limits, quotas, queues, and what later versions know.
            _ => {
                if ["queue", "tproxy", "synproxy", "fwd", "dnat", "redirect"].contains(&key) {
                    walk.may_drop.get_or_insert(rule.to_owned());
                    walk.may_accept.get_or_insert(rule.to_owned());
                }
                Step::Truth(Truth::Maybe)
            }
        }
    }

    /// What a rule decides.
    fn decide(
        &self,
        key: &str,
        value: &Value,
        rule: &str,
        applies: Truth,
        walk: &mut Walk,
        depth: u32,
    ) -> Step {
        let is_sure = applies == Truth::Yes;
        match key {
            "accept" if is_sure => Step::End(End::Accepted),
            "drop" | "reject" if is_sure => Step::End(End::Dropped(rule.to_owned())),
            "return" if is_sure => Step::End(End::Return),
            "accept" => {
                walk.may_accept.get_or_insert(rule.to_owned());
                Step::Next
            }
            "drop" | "reject" => {
                walk.may_drop.get_or_insert(rule.to_owned());
                Step::Next
            }
            // What follows in this chain may be skipped.
            "return" => {
                walk.may_accept.get_or_insert(rule.to_owned());
                walk.may_drop.get_or_insert(rule.to_owned());
                Step::Next
            }
            _ => {
                let target = value["target"].as_str().unwrap_or_default();
                if depth == DEPTH_MAX {
                    return Step::Next;
                }
                match (self.follow(target, walk, depth + 1), is_sure) {
                    (End::Return, true) if key == "goto" => Step::End(End::Return),
                    (End::Return, _) => Step::Next,
                    (end, true) => Step::End(end),
                    (End::Accepted, false) => {
                        walk.may_accept.get_or_insert(rule.to_owned());
                        Step::Next
                    }
                    (End::Dropped(by), false) => {
                        walk.may_drop.get_or_insert(by);
                        Step::Next
                    }
                }
            }
        }
    }

    /// A map from values to decisions: "ct state vmap { established : accept, ... }".
    fn map(&self, value: &Value, rule: &str, applies: Truth, walk: &mut Walk, depth: u32) -> Step {
        let Some(entries) = value["data"]["set"].as_array() else {
            walk.may_drop.get_or_insert(rule.to_owned());
            walk.may_accept.get_or_insert(rule.to_owned());
            return Step::Next;
        };
        for entry in entries {
            let fits = self.fits(&value["key"], &entry[0]).and(applies);
            let decision = entry[1].as_object().and_then(|object| object.iter().next());
            let (Some((key, target)), true) = (decision, fits != Truth::No) else {
                continue;
            };
            match self.decide(key, target, rule, fits, walk, depth) {
                Step::Next => {}
                step => return step,
            }
            if fits == Truth::Yes {
                break;
            }
        }
        Step::Next
    }

    fn is_match(&self, value: &Value) -> Truth {
        let truth = self.fits(&value["left"], &value["right"]);
        match value["op"].as_str() {
            Some("==" | "in") => truth,
            // Of a packet that has no such field it is not said either.
            Some("!=") => match self.field(&value["left"]) {
                Field::Absent => Truth::No,
                _ => truth.not(),
            },
            _ => match self.field(&value["left"]) {
                Field::Absent => Truth::No,
                _ => Truth::Maybe,
            },
        }
    }

    /// Says whether a field of the packet is, or is among, the value.
    fn fits(&self, left: &Value, right: &Value) -> Truth {
        let have = match self.field(left) {
            Field::Is(have) => have,
            Field::Absent => return Truth::No,
            Field::Unknown => return Truth::Maybe,
        };
        is_among(&have, right)
    }

    /// The field of the packet that an expression reads.
    fn field(&self, left: &Value) -> Field {
        if let Some(payload) = left.get("payload") {
            let [protocol, field] =
                ["protocol", "field"].map(|key| payload[key].as_str().unwrap_or_default());
            return match (protocol, field) {
                ("udp" | "th", "dport") => Field::is(ROCE_PORT.to_string()),
                ("ip", "protocol") => Field::is("udp"),
                ("ip" | "udp" | "th" | "ether", _) | ("", _) => Field::Unknown,
                _ => Field::Absent,
            };
        }
        let key = |name: &str| left[name]["key"].as_str().unwrap_or_default();
        if left.get("meta").is_some() {
            return match (key("meta"), self.packet.is_output) {
                ("l4proto", _) => Field::is("udp"),
                ("nfproto", _) => Field::is("ipv4"),
                ("protocol", _) => Field::is("ip"),
                ("iif" | "iifname", false) | ("oif" | "oifname", true) => {
                    Field::is(self.packet.netdev)
                }
                ("iif" | "iifname", true) | ("oif" | "oifname", false) => Field::Absent,
                _ => Field::Unknown,
            };
        }
        match key("ct") {
            // The answers have other ports, so each direction stays new for ever.
            "state" => Field::is("new"),
            _ => Field::Unknown,
        }
    }
}

/// What a statement does.
enum Step {
    /// It limits the rule.
    Truth(Truth),
    /// The packet leaves the chain.
    End(End),
    /// The next statement follows.
    Next,
}

/// A field of the packet.
enum Field {
    Is(String),
    /// The packet has no such field, so no match of it applies.
    Absent,
    Unknown,
}

impl Field {
    fn is(text: impl Into<String>) -> Self {
        Field::Is(text.into())
    }
}

/// Says whether `have` is the value of a rule, or one of its set.
fn is_among(have: &str, want: &Value) -> Truth {
    let any = |values: &Vec<Value>| {
        let mut truth = Truth::No;
        for value in values {
            match is_among(have, value) {
                Truth::Yes => return Truth::Yes,
                Truth::Maybe => truth = Truth::Maybe,
                Truth::No => {}
            }
        }
        truth
    };
    match want {
        Value::String(text) if text.starts_with('@') => Truth::Maybe,
        Value::String(text) => match text.strip_suffix('*') {
            Some(start) => Truth::of(have.starts_with(start)),
            None => Truth::of(have == text || have == "udp" && text == "17"),
        },
        Value::Number(number) => {
            Truth::of(have == number.to_string() || have == "udp" && *number == 17.into())
        }
        Value::Array(values) => any(values),
        Value::Object(object) => match object
            .iter()
            .next()
            .map(|(key, value)| (key.as_str(), value))
        {
            Some(("set", Value::Array(values))) | Some(("|", Value::Array(values))) => any(values),
            Some(("set", value)) => is_among(have, value),
            Some(("elem", value)) => is_among(have, &value["val"]),
            Some(("range", value)) => {
                let numbers = (value[0].as_u64(), value[1].as_u64(), have.parse::<u64>());
                match numbers {
                    (Some(first), Some(last), Ok(have)) => {
                        Truth::of((first..=last).contains(&have))
                    }
                    _ => Truth::Maybe,
                }
            }
            _ => Truth::Maybe,
        },
        _ => Truth::Maybe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ruleset with one base chain `input` of that policy, and rules "CHAIN STATEMENT, ...".
    fn ruleset(policy: &str, rules: &[(&str, &str)]) -> String {
        let base = format!(
            r#"{{"chain":{{"family":"inet","table":"t","name":"input","handle":1,"type":"filter","hook":"input","prio":0,"policy":"{policy}"}}}}"#
        );
        let mut objects = vec![r#"{"metainfo":{"json_schema_version":1}}"#.to_owned(), base];
        for (handle, (chain, statements)) in rules.iter().enumerate() {
            objects.push(format!(
                r#"{{"rule":{{"family":"inet","table":"t","chain":"{chain}","handle":{},"expr":[{statements}]}}}}"#,
                handle + 2
            ));
        }
        format!(r#"{{"nftables":[{}]}}"#, objects.join(","))
    }

    fn is(left: &str, right: &str) -> String {
        format!(r#"{{"match":{{"op":"==","left":{left},"right":{right}}}}}"#)
    }

    const DPORT: &str = r#"{"payload":{"protocol":"udp","field":"dport"}}"#;
    const SADDR: &str = r#"{"payload":{"protocol":"ip","field":"saddr"}}"#;
    const STATE: &str = r#"{"ct":{"key":"state"}}"#;
    const NAME: &str = r#"{"meta":{"key":"iifname"}}"#;
    const DROP: &str = r#"{"drop":null}"#;
    const ACCEPT: &str = r#"{"accept":null}"#;

    fn decision(policy: &str, rules: &[(&str, &str)]) -> Decision {
        let decisions = decisions(&ruleset(policy, rules), "eth0").expect("rules");
        assert_eq!(decisions.len(), 1);
        decisions[0].clone()
    }

    fn rank(policy: &str, rules: &[(&str, &str)]) -> &'static str {
        match decision(policy, rules) {
            Decision::Accepted => "accepted",
            Decision::Dropped { .. } => "dropped",
            Decision::Unknown { .. } => "unknown",
        }
    }

    #[test]
    fn rules_of_all_kinds() {
        let dport = |right: &str, then: &str| format!("{},{then}", is(DPORT, right));
        assert_eq!(rank("accept", &[]), "accepted");
        assert_eq!(rank("drop", &[]), "dropped");
        for (rule, with_accept, with_drop) in [
            (dport("4791", DROP), "dropped", "dropped"),
            (dport("4791", ACCEPT), "accepted", "accepted"),
            (dport("4792", DROP), "accepted", "dropped"),
            (dport("4792", ACCEPT), "accepted", "dropped"),
            (dport(r#"{"range":[4000,5000]}"#, DROP), "dropped", "dropped"),
            (dport(r#"{"set":[22,4791]}"#, ACCEPT), "accepted", "accepted"),
            (dport(r#""@ports""#, DROP), "unknown", "dropped"),
            (dport(r#""@ports""#, ACCEPT), "accepted", "unknown"),
            (format!("{},{DROP}", is(SADDR, r#""10.9.0.1""#)), "unknown", "dropped"),
            (format!("{},{ACCEPT}", is(NAME, r#""lo""#)), "accepted", "dropped"),
            (format!("{},{ACCEPT}", is(NAME, r#""eth*""#)), "accepted", "accepted"),
            (format!("{},{ACCEPT}", is(STATE, r#"["established","related"]"#)), "accepted", "dropped"),
            (format!("{},{DROP}", is(STATE, r#""invalid""#)), "accepted", "dropped"),
            (format!("{},{DROP}", is(r#"{"payload":{"protocol":"tcp","field":"dport"}}"#, "4791")), "accepted", "dropped"),
            (format!(r#"{{"limit":{{"rate":1}}}},{DROP}"#), "unknown", "dropped"),
            (r#"{"xt":null}"#.into(), "accepted", "dropped"),
            (format!(r#"{{"counter":{{}}}},{{"log":null}},{DROP}"#), "dropped", "dropped"),
            (r#"{"reject":{"type":"icmpx"}}"#.into(), "dropped", "dropped"),
            (r#"{"vmap":{"key":{"ct":{"key":"state"}},"data":{"set":[["established",{"accept":null}],["new",{"drop":null}]]}}}"#.into(), "dropped", "dropped"),
            (r#"{"vmap":{"key":{"ct":{"key":"state"}},"data":{"set":[["established",{"accept":null}],["invalid",{"drop":null}]]}}}"#.into(), "accepted", "dropped"),
        ] {
            let rules = [("input", rule.as_str())];
            assert_eq!(rank("accept", &rules), with_accept, "{rule}");
            assert_eq!(rank("drop", &rules), with_drop, "{rule}");
        }
    }

    #[test]
    fn jumps() {
        let to = |key: &str| format!(r#"{{"{key}":{{"target":"more"}}}}"#);
        let rule = format!("{},{DROP}", is(DPORT, "4791"));
        assert_eq!(
            rank("accept", &[("input", &to("jump")), ("more", &rule)]),
            "dropped"
        );
        let unsure = format!("{},{}", is(SADDR, r#""10.0.0.1""#), to("jump"));
        assert_eq!(
            rank("accept", &[("input", &unsure), ("more", &rule)]),
            "unknown"
        );
        let back = [
            ("input", &*to("jump")),
            ("more", r#"{"return":null}"#),
            ("input", ACCEPT),
        ];
        assert_eq!(rank("drop", &back), "accepted");
        let gone = [("input", &*to("goto")), ("input", ACCEPT)];
        assert_eq!(rank("drop", &gone), "dropped");
        // A chain that jumps to itself, which the kernel refuses.
        assert_eq!(
            rank("accept", &[("input", &to("jump")), ("more", &to("jump"))]),
            "accepted"
        );
    }

    #[test]
    fn the_rule_and_the_cure_are_named() {
        let rule = format!("{},{DROP}", is(DPORT, "4791"));
        let Decision::Dropped { by, cure } = decision("accept", &[("input", &rule)]) else {
            panic!("not dropped");
        };
        assert_eq!(by, "rule 2 in chain input of table inet t (nftables)");
        assert_eq!(cure, "nft insert rule inet t input udp dport 4791 accept");
        let firewalld = ruleset("drop", &[]).replace(r#""table":"t""#, r#""table":"firewalld""#);
        let Decision::Dropped { cure, .. } = &decisions(&firewalld, "eth0").expect("rules")[0]
        else {
            panic!("not dropped");
        };
        assert!(
            cure.starts_with("firewall-cmd --add-port=4791/udp"),
            "{cure}"
        );
    }

    #[test]
    fn other_rules_are_left_alone() {
        let text = ruleset("drop", &[]);
        for (from, to) in [
            (r#""hook":"input""#, r#""hook":"forward""#),
            (r#""family":"inet""#, r#""family":"ip6""#),
            (r#""type":"filter""#, r#""type":"nat""#),
            (
                r#""family":"inet","table":"t","name":"input""#,
                r#""family":"ip","table":"filter","name":"INPUT""#,
            ),
        ] {
            assert!(text.contains(from));
            assert_eq!(
                decisions(&text.replace(from, to), "eth0"),
                Some(Vec::new()),
                "{to}"
            );
        }
        assert_eq!(decisions("nonsense", "eth0"), None);
        let output = text.replace("input", "output");
        assert_eq!(decisions(&output, "eth0").expect("rules").len(), 1);
    }
}

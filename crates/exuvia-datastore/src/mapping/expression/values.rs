//! JSON to CEL and back. The crate's own way through serde makes unsigned numbers of integers and `null` of optionals.

use std::collections::HashMap;

use cel::common::types::{
    CelBool, CelDouble, CelInt, CelList, CelMap, CelMapKey, CelNull, CelOptional, CelString, CelUInt,
};
use cel::common::value::Val;
use serde_json::{Map, Number, Value};

use super::budget::MAX_BYTES;

/// A JSON value for an expression. Texts are borrowed.
pub(super) fn to_cel<'v>(value: &'v Value) -> Box<dyn Val + 'v> {
    match value {
        Value::Null => Box::new(CelNull),
        Value::Bool(boolean) => Box::new(CelBool::from(*boolean)),
        Value::Number(number) => number_to_cel(number),
        Value::String(text) => Box::new(CelString::from(text.as_str())),
        Value::Array(items) => {
            let items: Vec<Box<dyn Val + 'v>> = items.iter().map(to_cel).collect();
            Box::new(CelList::from(items))
        }
        Value::Object(fields) => {
            let fields: HashMap<CelMapKey<'v>, Box<dyn Val + 'v>> = fields
                .iter()
                .map(|(key, value)| (CelMapKey::from(key.as_str()), to_cel(value)))
                .collect();
            Box::new(CelMap::from(fields))
        }
    }
}

/// The same, of a value that nobody else holds.
pub(super) fn into_cel(value: Value) -> Box<dyn Val> {
    match value {
        Value::String(text) => Box::new(CelString::from(text)),
        Value::Array(items) => {
            let items: Vec<Box<dyn Val>> = items.into_iter().map(into_cel).collect();
            Box::new(CelList::from(items))
        }
        Value::Object(fields) => {
            let fields: HashMap<CelMapKey<'static>, Box<dyn Val>> = fields
                .into_iter()
                .map(|(key, value)| (CelMapKey::from(key), into_cel(value)))
                .collect();
            Box::new(CelMap::from(fields))
        }
        Value::Null => Box::new(CelNull),
        Value::Bool(boolean) => Box::new(CelBool::from(boolean)),
        Value::Number(number) => number_to_cel(&number),
    }
}

fn number_to_cel<'v>(number: &Number) -> Box<dyn Val + 'v> {
    if let Some(int) = number.as_i64() {
        Box::new(CelInt::from(int))
    } else if let Some(uint) = number.as_u64() {
        Box::new(CelUInt::from(uint))
    } else {
        Box::new(CelDouble::from(number.as_f64().unwrap_or(f64::NAN)))
    }
}

/// How many values are in a JSON value, itself included.
pub(super) fn count(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(count).sum::<usize>(),
        Value::Object(fields) => 2 + fields.values().map(|field| 1 + count(field)).sum::<usize>(),
        _ => 1,
    }
}

/// The result of an expression as JSON. `None` is an absent one, `optional.none()`.
pub(super) fn to_json(result: &dyn Val) -> Result<Option<Value>, String> {
    let mut bytes_left = MAX_BYTES;
    match result.downcast_ref::<CelOptional>() {
        None => json(result, &mut bytes_left).map(Some),
        Some(optional) => optional
            .option()
            .map(|inner| json(inner, &mut bytes_left))
            .transpose(),
    }
}

fn json(value: &dyn Val, bytes_left: &mut usize) -> Result<Value, String> {
    let mut take = |bytes: usize| match bytes_left.checked_sub(bytes) {
        Some(left) => {
            *bytes_left = left;
            Ok(())
        }
        None => Err(format!("the result is larger than {MAX_BYTES} bytes")),
    };
    if let Some(text) = value.downcast_ref::<CelString>() {
        take(text.inner().len() + 3)?;
        return Ok(Value::String(text.inner().to_owned()));
    }
    if let Some(list) = value.downcast_ref::<CelList>() {
        take(3)?;
        return list
            .inner()
            .iter()
            .map(|item| json(item.as_ref(), bytes_left))
            .collect();
    }
    if let Some(map) = value.downcast_ref::<CelMap>() {
        let mut fields = Map::new();
        for (key, item) in map.inner() {
            let CelMapKey::String(key) = key else {
                return Err(format!(
                    "the result has a map key of type {}: expected string",
                    key.inner().get_type().name()
                ));
            };
            *bytes_left = bytes_left.saturating_sub(key.inner().len() + 4);
            fields.insert(key.inner().to_owned(), json(item.as_ref(), bytes_left)?);
        }
        return Ok(Value::Object(fields));
    }
    take(2)?;
    if value.downcast_ref::<CelNull>().is_some() {
        Ok(Value::Null)
    } else if let Some(boolean) = value.downcast_ref::<CelBool>() {
        Ok(Value::Bool(*boolean.inner()))
    } else if let Some(int) = value.downcast_ref::<CelInt>() {
        Ok(Value::from(*int.inner()))
    } else if let Some(uint) = value.downcast_ref::<CelUInt>() {
        Ok(Value::from(*uint.inner()))
    } else if let Some(double) = value.downcast_ref::<CelDouble>() {
        Number::from_f64(*double.inner())
            .map(Value::Number)
            .ok_or_else(|| "the result holds NaN or an infinite number: JSON has none".to_owned())
    } else if value.downcast_ref::<CelOptional>().is_some() {
        Err("the result has an optional inside: use `?` before the field or element, or orValue()".to_owned())
    } else {
        Err(format!(
            "the result holds a value of type {}: JSON has none",
            value.get_type().name()
        ))
    }
}

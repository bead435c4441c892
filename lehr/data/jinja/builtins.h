// Built-in functions of templates: filters, tests, methods of strings and dicts, global functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lehr/data/jinja/value.h"

namespace lehr::data::jinja {

/// A filter and a test, with the value that they are applied to.
using Filter = Value (*)(const Value& input, const Arguments& arguments);
using Test = bool (*)(const Value& input, const Arguments& arguments);

/// Return the filter or test of that name, or null.
Filter find_filter(std::string_view name);
Test find_test(std::string_view name);

/// Returns the method `name` of `object` as a function; nothing if Python has no such method. For a Python method that
/// this interpreter does not support, the returned function throws when called.
std::optional<Value> find_method(const Value& object, const std::string& name);

/// Returns the functions available to every template: namespace, dict, range, raise_exception.
const Dict& global_functions();

/// Evaluates object.name and object[key] with Jinja's rules; undefined if there is no such entry.
Value look_up_attribute(const Value& object, const std::string& name);
Value look_up_item(const Value& object, const Value& key);

/// Binds arguments to parameters by name; missing ones are undefined. Throws Problem for excess or unknown arguments;
/// `what` is the name of the function in messages.
List bound(const Arguments& arguments, const std::vector<std::string>& parameters, std::string_view what);

}  // namespace lehr::data::jinja

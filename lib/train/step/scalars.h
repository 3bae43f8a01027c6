// The named scalars of a manifest as typed values. Doubles are written as hexadecimal floating point, so they read back
// to the same bits. A missing or malformed scalar is an InputError that begins with `where` and names it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace scaletrain {

using Scalars = std::map<std::string, std::string>;

void put_scalar(Scalars& scalars, const std::string& name, std::int64_t value);
void put_scalar(Scalars& scalars, const std::string& name, double value);
// Numbers in one scalar, with spaces between them.
void put_scalar(Scalars& scalars, const std::string& name, std::span<const double> values);
std::int64_t get_integer(const Scalars& scalars, const std::string& name, const std::string& where);
double get_double(const Scalars& scalars, const std::string& name, const std::string& where);
std::vector<double> get_doubles(const Scalars& scalars, const std::string& name, const std::string& where);
bool has_scalar(const Scalars& scalars, const std::string& name);

}  // namespace scaletrain

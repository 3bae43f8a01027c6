// Text as gzip and Zstandard files hold it, packed by their libraries.
#pragma once

#include <doctest/doctest.h>
#include <zlib.h>
#include <zstd.h>

#include <string>

namespace scaletrain::test {

inline std::string gzipped(const std::string& text) {
  z_stream state{};
  REQUIRE(::deflateInit2(&state, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(::deflateBound(&state, text.size()) + 64, '\0');
  std::string in = text;
  state.next_in = reinterpret_cast<Bytef*>(in.data());
  state.avail_in = static_cast<uInt>(in.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  REQUIRE(::deflate(&state, Z_FINISH) == Z_STREAM_END);
  out.resize(state.total_out);
  ::deflateEnd(&state);
  return out;
}

inline std::string zstandard(const std::string& text) {
  ZSTD_CCtx* const state = ::ZSTD_createCCtx();
  REQUIRE(::ZSTD_isError(::ZSTD_CCtx_setParameter(state, ZSTD_c_checksumFlag, 1)) == 0);
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  const std::size_t size = ::ZSTD_compress2(state, out.data(), out.size(), text.data(), text.size());
  REQUIRE(::ZSTD_isError(size) == 0);
  ::ZSTD_freeCCtx(state);
  out.resize(size);
  return out;
}

}  // namespace scaletrain::test

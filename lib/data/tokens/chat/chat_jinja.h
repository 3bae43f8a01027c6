// The styles of chat_styles.cpp as Jinja, for the programs that read an exported model. They say in Jinja what the C++
// of the style says, for the roles system, user and assistant, and have no tools. Internal to chat/.
#pragma once

#include <string_view>

namespace scaletrain {

// The token that begins a document is written out: a tokenizer that has no template may not name it either.
inline constexpr std::string_view kLlama3Jinja = R"({%- for message in messages %}
{%- if loop.first %}
{{- '<|begin_of_text|>' }}
{%- endif %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + (message.content | trim) + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})";

inline constexpr std::string_view kLlama3FirstJinja = R"({%- for message in messages %}
{%- if loop.first %}
{{- '<|begin_of_text|>' }}
{%- endif %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + (message.content | trim) + '<|eot_id|>' }}
{%- endfor %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }})";

inline constexpr std::string_view kQwen3Jinja = R"({%- set last = namespace(question=messages | length - 1) %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
{%- set last.question = loop.index0 %}
{%- endif %}
{%- endif %}
{%- endfor %}
{%- for message in messages %}
{%- set content = message.content %}
{%- if message.role == 'assistant' %}
{%- set thoughts = '' %}
{%- if '</think>' in content %}
{%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
{%- set content = content.split('</think>')[-1].lstrip('\n') %}
{%- endif %}
{%- if loop.index0 > last.question and (loop.last or thoughts) %}
{%- set content = '<think>\n' + thoughts.rstrip('\n') + '\n</think>\n\n' + content.lstrip('\n') %}
{%- endif %}
{%- endif %}
{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %})";

inline constexpr std::string_view kChatmlJinja = R"({%- for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n' }}
{%- endif %})";

}  // namespace scaletrain

// scaletrain completion bash|zsh|fish: what a shell reads to complete the program's words.
#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "commands.h"

namespace scaletrain {

namespace {

// '=' and ':' part words in bash: they are put together again for the program, and of its answers only what stands
// behind the last of them is given to bash. Several words together that way are one only if no blank parts them, which
// bash tells by the '=' being a word.
constexpr const char* bash_script = R"(# scaletrain completion bash
_scaletrain() {
  local -a words=()
  local i word part glue=""
  for ((i = 1; i <= COMP_CWORD; i++)); do
    part=${COMP_WORDS[i]}
    if [[ $part == [=:] || -n $glue ]] && ((${#words[@]} > 0)); then
      words[${#words[@]}-1]+=$part
    else
      words+=("$part")
    fi
    glue=""
    [[ $part == *[=:] ]] && glue=1
  done
  local typed=${words[${#words[@]}-1]} before=""
  [[ $COMP_WORDBREAKS == *=* && $typed == *=* ]] && before=${typed%=*}=
  [[ $COMP_WORDBREAKS == *:* && $typed == *:* ]] && before=${typed%:*}:
  COMPREPLY=()
  while IFS=$'\t' read -r word _; do
    if [[ $word == :files ]]; then
      compopt -o filenames 2>/dev/null
      while IFS= read -r part; do COMPREPLY+=("$part"); done < <(compgen -f -- "${typed#"$before"}")
    else
      COMPREPLY+=("${word#"$before"}")
    fi
  done < <("${COMP_WORDS[0]/#\~/$HOME}" complete -- "${words[@]}" 2>/dev/null)
  if ((${#COMPREPLY[@]} == 1)) && [[ ${COMPREPLY[0]} == *= ]]; then compopt -o nospace 2>/dev/null; fi
  return 0
}
complete -F _scaletrain scaletrain
)";

constexpr const char* zsh_script = R"(#compdef scaletrain
_scaletrain() {
  local word meaning
  local -a closed open
  local program=${(Q)words[1]}
  program=${program/#\~/$HOME}
  while IFS=$'\t' read -r word meaning; do
    case $word in
      :files) _files ;;
      *=) open+=("${word//:/\\:}:$meaning") ;;
      *) closed+=("${word//:/\\:}:$meaning") ;;
    esac
  done < <("$program" complete -- "${(@Q)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)
  (( ${#open} )) && _describe -t keys key open -S ''
  (( ${#closed} )) && _describe -t values value closed
  return 0
}
if [[ $funcstack[1] == _scaletrain ]]; then _scaletrain "$@"; else compdef _scaletrain scaletrain; fi
)";

constexpr const char* fish_script = R"(# scaletrain completion fish
function __scaletrain_complete
    set -l before (commandline -opc)
    set -l typed (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $before[1])
    for line in ($program complete -- $before[2..-1] "$typed" 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path "$typed"
        else
            echo $line
        end
    end
end
complete -c scaletrain -f -a '(__scaletrain_complete)'
)";

constexpr const char* how_to_use = R"(To have it now and in every new shell:
  bash  echo 'source <(scaletrain completion bash)' >> ~/.bashrc
  zsh   echo 'source <(scaletrain completion zsh)' >> ~/.zshrc  # after compinit
  fish  scaletrain completion fish > ~/.config/fish/completions/scaletrain.fish)";

}  // namespace

Command add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "Print what makes a shell complete this program's words");
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->type_name("bash|zsh|fish")
      ->check(CLI::Validator(
          [](const std::string& name) {
            const bool is_known = name == "bash" || name == "zsh" || name == "fish";
            return is_known ? std::string() : "there are bash, zsh and fish, not " + name;
          },
          ""));
  command->footer(how_to_use);
  return [shell] {
    write_output(*shell == "bash" ? bash_script : *shell == "zsh" ? zsh_script : fish_script);
    return ExitCode::finished;
  };
}

}  // namespace scaletrain
